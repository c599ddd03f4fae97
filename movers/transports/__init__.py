"""How bytes move between movers. One module or package for each backend; they never import each other."""
