"""The C side of DLPack: declarations, structs, capsules, other libraries' exchange tables."""
