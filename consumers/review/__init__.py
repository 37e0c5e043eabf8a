"""What a reviewer is shown, and what it proves; the decision itself is in consumers.operations.reviews."""
