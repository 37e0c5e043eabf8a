"""What a person decides where the evidence leaves the outcome open. Nothing here decides by itself."""
