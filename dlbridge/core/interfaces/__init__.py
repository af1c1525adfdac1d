"""The ways in and out that many libraries have: DLPack, buffers, array interfaces, Arrow."""
