"""What of a model runs where, in how much memory and how fast, by headers and data sheets: nothing is loaded."""
