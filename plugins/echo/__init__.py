"""The sample plugin: copy this folder to begin your own."""
