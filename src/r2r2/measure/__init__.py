"""How good: evaluation of what was learnt."""
