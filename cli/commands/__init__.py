"""One module for each noun; siblings do not import each other. Loaded when first used."""
