// SPDX-License-Identifier: MIT
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
