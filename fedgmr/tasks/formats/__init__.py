"""HOW data lies on disk: public file formats and our packed ones, read into arrays; a bad file is told by name."""
