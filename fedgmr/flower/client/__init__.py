"""The client's half: the app, its data and its files."""
