"""One provider at a time: its profile, the request, the one HTTP client, and what an answer means."""
