"""The shapes on each engine. These modules run in the environment of their engine, which has nothing of Paceline's installed."""
