"""The collection service: devices send, a dashboard shows, nothing acknowledged is lost."""
