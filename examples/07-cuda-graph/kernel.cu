// SPDX-License-Identifier: MIT
#include <mscclpp/kernel.hpp>
#include <mscclpp/port_channel.hpp>

// The words of each rank's memory.
enum Word : uint64_t {
  // How many launches there were.
  Launches,
  // What this rank sends.
  Outgoing,
  // What comes, in even launches and, behind it, in odd ones.
  Incoming,
  // Launches that found something else than the peer's word.
  Wrong = Incoming + 2,
  // How a call that failed did; 0 if none did.
  FailedWith
};

struct ExchangeArgs {
  // From all words here to all words at the peer.
  mscclpp::DeviceHandle<mscclpp::PortChannel> channel;
  uint64_t* words;
  uint64_t rank;
};

// Sends a word and looks at the peer's. A launch of a graph always has the same arguments, so what
// changes is in memory. One thread. The peer's word of two launches later comes after it has this rank's
// of the next, so that none is overwritten before it was seen.
MSCCLPP_KERNEL(exchange, ExchangeArgs) {
  using mscclpp::Status;
  auto channel = args.channel;
  uint64_t* words = args.words;
  const uint64_t incoming = Incoming + words[Launches] % 2;
  const uint64_t launch = ++words[Launches];
  words[Outgoing] = 2 * launch + args.rank;
  Status status = channel.putWithSignalAndFlush(8 * incoming, 8 * Outgoing, 8);
  if (status == Status::Ok) status = channel.wait();
  if (status != Status::Ok) words[FailedWith] = static_cast<uint64_t>(status);
  if (words[incoming] != 2 * launch + (1 - args.rank)) words[Wrong] += 1;
}
