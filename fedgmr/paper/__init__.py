"""The paper's tables: which runs each needs, how numbers are made of them, and the paper's own beside ours."""
