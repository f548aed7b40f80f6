"""The argument of the paper, checked numerically: chains, lemmas, gradient flows, the page."""
