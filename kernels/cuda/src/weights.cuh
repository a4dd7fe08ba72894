// All types of quantized weights (blocks.cuh).
#pragma once
#include "blocks.cuh"
#include "blocks_grid.cuh"
#include "blocks_small.cuh"
