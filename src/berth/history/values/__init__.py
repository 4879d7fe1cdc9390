"""What texts of accounting stand for: host lists, trackable resources, applications."""
