"""What if: questions about the history that are answered by replays in the background, and kept."""
