"""HOW data lies on disk: public file formats and packed files, read into arrays; errors name the bad file."""
