"""What people look at: figures as text, and the style of all pictures."""
