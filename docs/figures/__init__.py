"""The figures of the documents, each drawn by a module of its name from the library's own parts or from kept runs."""
