"""The mathematics: losses, networks, agents, and the compiled update."""
