// SPDX-License-Identifier: MIT
// What the C++ program asks of Rust: src/main.rs implements it. Functions print why they fail.
#pragma once

#include <mscclpp/port_channel.hpp>

extern "C" {

// This rank, its peer and the channel between them. One thread at a time.
struct Peer;

// Connects two ranks, with `bytes` of memory on each that the channel reaches; null if that fails.
Peer* peer_open(uint64_t bytes);
// 0 or 1.
uint32_t peer_rank(const Peer*);
// The memory, zeroed and aligned.
void* peer_memory(const Peer*);
// The channel from the whole memory here to the whole memory there.
void peer_channel(const Peer*, mscclpp::DeviceHandle<mscclpp::PortChannel>* channel);
// Runs a kernel of one pointer as its argument on so many CPU threads; not 0 if that fails. After a
// failure the kernel may still run: end the process.
int peer_run(const Peer*, void (*kernel)(const void*), const void* argument, uint32_t threads);
// Waits for the peer, and ends the connection; not 0 if that fails.
int peer_close(Peer*);

}
