"""All compiled code of the product, by what it computes. Each function also runs uncompiled, as its reference."""
