#include "numerics/error_bounds.h"
