"""Experience: acting, replay, episodes."""
