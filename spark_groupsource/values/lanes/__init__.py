"""Binary values of a block, advanced together."""
