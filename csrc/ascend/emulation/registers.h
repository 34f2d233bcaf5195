// The register-level vector API: all of its parts, and the call of its functions.
#pragma once

#include "register_aligned.h"
#include "register_arithmetic.h"
#include "register_cast.h"
#include "register_rearrange.h"
#include "register_reduce.h"
#include "register_select.h"
#include "register_unaligned.h"
