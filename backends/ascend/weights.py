"""How weights are laid out for the cube, and their way back.

bf16 and f32 weights stay as the checkpoint has them, row-major (``ascend.plain``).  fp8_block32 and mxfp4 of the kinds
linear, group and experts are stored as `tandem.backends.ascend.layouts` says (``ascend.mx8``, ``ascend.mx4``); `Scaled`
holds the two tensors.  Activations are canonical.
"""
