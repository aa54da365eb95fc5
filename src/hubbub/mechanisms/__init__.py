"""One file per algorithm family; each reads side by side with its paper."""
