// Epilogues of a matrix product: values of EPILOGUE, named as in sp/kernels/specs/matmul/epilogue.py.
#pragma once

#define EPILOGUE_STORE 0      // bf16; in the kernels for few tokens float32 where that output is given
#define EPILOGUE_ADD 1        // float32, added to what is there
#define EPILOGUE_SWIGLU 2     // bf16 silu(gate) * up of two products
#define EPILOGUE_STORE_F32 3  // float32, in kernels that are compiled for one type of output
