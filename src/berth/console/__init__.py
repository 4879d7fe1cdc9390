"""The console: the live cluster, its history and "what if", in one web page."""
