"""From the model and the market to a quote: draws, choice, intervals."""
