// SPDX-License-Identifier: MIT
//! GPU-to-GPU one-sided channels: memory, semaphores, FIFO, proxy, port channels.
