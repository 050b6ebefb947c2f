// SPDX-License-Identifier: MIT
//! The checks find fault with spoilt headers.
//!
//! Each mutant is a copy of the headers with one piece of text replaced, such as
//! a release made relaxed. The check named with it must fail on the kernels
//! built with the copy; on the headers as they are it passes (see the tests of
//! the module that the check is from).

use std::path::Path;
use std::time::Instant;

use crate::queue::waits;
use crate::support::{Build, Kernels, Outcome};
use crate::{channel, fifo, grid, packet, semaphore};

pub(crate) struct Mutant {
    pub(crate) header: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) kernels: &'static str,
    pub(crate) check: fn(&Kernels) -> Outcome,
}

/// Builds the mutant's kernels. Panics unless the text to replace is there once.
pub(crate) fn build(mutant: &Mutant) -> (Build, Kernels) {
    let copy = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let target = copy.path().join("mscclpp");
    std::fs::create_dir(&target).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/mscclpp");
    for file in std::fs::read_dir(source).unwrap() {
        let file = file.unwrap();
        let mut text = std::fs::read_to_string(file.path()).unwrap();
        if file.file_name() == mutant.header {
            assert_eq!(
                text.matches(mutant.from).count(),
                1,
                "in {}: {}",
                mutant.header,
                mutant.from
            );
            text = text.replace(mutant.from, mutant.to);
        }
        std::fs::write(target.join(file.file_name()), text).unwrap();
    }
    let build = Build::new(copy.path().to_owned());
    let kernels = build.compile(mutant.kernels);
    (build, kernels)
}

fn is_found(mutant: Mutant) {
    let (_build, kernels) = build(&mutant);
    let started = Instant::now();
    match (mutant.check)(&kernels) {
        Err(fault) => println!(
            "{}: {:?} -> {:?}\n  found in {:?}: {fault}",
            mutant.header,
            mutant.from,
            mutant.to,
            started.elapsed()
        ),
        Ok(()) => panic!(
            "{}: {:?} -> {:?} was not noticed",
            mutant.header, mutant.from, mutant.to
        ),
    }
}

macro_rules! mutants {
    ($($name:ident: $header:literal, $from:literal => $to:literal, $kernels:literal, $check:path;)*) => {
        $(
            #[test]
            fn $name() {
                is_found(Mutant { header: $header, from: $from, to: $to, kernels: $kernels, check: $check });
            }
        )*
    };
}

mod queue;

mutants! {
    // The FIFO's publication.
    commit_word_not_released: "memory_host.hpp",
        "store<scopeSystem>(address + 1, second, memoryOrderRelease);"
        => "store<scopeSystem>(address + 1, second, memoryOrderRelaxed);",
        "fifo", fifo::weak_publication;
    commit_word_released_to_the_gpu_only: "memory_host.hpp",
        "store<scopeSystem>(address + 1, second, memoryOrderRelease);"
        => "store<scopeDevice>(address + 1, second, memoryOrderRelease);",
        "fifo", fifo::weak_publication;
    commit_word_stored_first: "memory_host.hpp",
        "  store<scopeSystem>(address, first, memoryOrderRelaxed);\n  store<scopeSystem>(address + 1, second, memoryOrderRelease);"
        => "  store<scopeSystem>(address + 1, second, memoryOrderRelease);\n  store<scopeSystem>(address, first, memoryOrderRelaxed);",
        "fifo", fifo::weak_publication;
    commit_word_stored_first_in_the_trace: "memory_host.hpp",
        "  store<scopeSystem>(address, first, memoryOrderRelaxed);\n  store<scopeSystem>(address + 1, second, memoryOrderRelease);"
        => "  store<scopeSystem>(address + 1, second, memoryOrderRelease);\n  store<scopeSystem>(address, first, memoryOrderRelaxed);",
        "fifo", fifo::traced_publication;
    commit_word_not_released_in_the_trace: "memory_host.hpp",
        "store<scopeSystem>(address + 1, second, memoryOrderRelease);"
        => "store<scopeSystem>(address + 1, second, memoryOrderRelaxed);",
        "fifo", fifo::traced_publication;
    commit_bit_not_set: "fifo_device.hpp",
        "trigger.fields.reserved = ((position >> sizeShift) & 1) ^ 1;" => "trigger.fields.reserved = 0;",
        "fifo", fifo::weak_publication;
    commit_bit_without_the_lap: "fifo_device.hpp",
        "trigger.fields.reserved = ((position >> sizeShift) & 1) ^ 1;" => "trigger.fields.reserved = 1;",
        "fifo", fifo::weak_publication;
    commit_store_missing: "memory_host.hpp",
        "  store<scopeSystem>(address + 1, second, memoryOrderRelease);" => "  (void)second;",
        "fifo", fifo::weak_publication;
    slot_overwritten_without_room: "fifo_device.hpp",
        "    if (hasRoom(taken)) return Status::Ok;" => "    if (hasRoom(taken) || true) return Status::Ok;",
        "fifo", fifo::four_laps;
    positions_handed_out_twice: "fifo_device.hpp",
        "const uint64_t taken = atomicFetchAdd<uint64_t, scopeDevice>(head, 1, memoryOrderRelaxed);"
        => "const uint64_t taken = atomicLoad<uint64_t, scopeDevice>(head, memoryOrderRelaxed);
            sched_yield();
            atomicStore<uint64_t, scopeDevice>(head, taken + 1, memoryOrderRelaxed);",
        "fifo", fifo::several_producers;
    budget_takes_a_slot_without_room: "fifo_device.hpp",
        "if (!hasRoom(position)) {" => "if (false) {",
        "fifo", fifo::taken_slots_are_filled;

    // The semaphore.
    consumed_without_a_claim: "semaphore_device.hpp",
        "if (memory::compareExchange<scopeDevice>(expectedInboundToken, expected, expected + 1, memoryOrderRelaxed) ==
          expected) {"
        => "if (atomicFetchAdd<uint64_t, scopeDevice>(expectedInboundToken, 1, memoryOrderRelaxed) + 1) {",
        "semaphore", semaphore::a_lost_race_is_no_win;
    wait_consumes_before_it_succeeds: "semaphore_device.hpp",
        "return detail::waitUntil([&] { return poll(); }, status, nullptr, maxSpinCount);"
        => "const uint64_t mine = atomicFetchAdd<uint64_t, scopeDevice>(expectedInboundToken, 1, memoryOrderRelaxed);
            return detail::waitUntil([&] { return loadInbound() > mine; }, status, nullptr, maxSpinCount);",
        "semaphore", semaphore::budgets;
    token_not_acquired: "semaphore_device.hpp",
        "atomicLoad<uint64_t, scopeSystem>(inboundToken, memoryOrderAcquire)"
        => "atomicLoad<uint64_t, scopeSystem>(inboundToken, memoryOrderRelaxed)",
        "semaphore", semaphore::looks_acquire;

    // Waiting.
    no_last_look_at_the_token: "wait_device.hpp",
        "return done() ? Status::Ok : error;" => "return error;",
        "semaphore", semaphore::an_arrived_signal_wins;
    status_not_looked_at: "wait_device.hpp",
        "if (error != Status::Ok) return done() ? Status::Ok : error;" => "(void)error;",
        "semaphore", semaphore::released_by_status;
    status_looked_at_each_time: "wait_device.hpp",
        "statusIntervalNs = 10000;" => "statusIntervalNs = 0;",
        "semaphore", semaphore::status_is_looked_at_seldom;
    small_budget_learns_no_error: "wait_device.hpp",
        "(last && !looked)" => "(last && looked)",
        "queue", waits::small_budgets;
    budget_ends_with_ok: "wait_device.hpp",
        "if (last) return Status::Timeout;" => "if (last) return Status::Ok;",
        "semaphore", semaphore::budgets;

    // The channel.
    flush_done_one_early: "port_channel_device.hpp",
        "(flushDonePos_, memoryOrderAcquire) > position" => "(flushDonePos_, memoryOrderAcquire) >= position",
        "channel", channel::a_flush_waits_for_its_own_position;
    flush_blind_to_its_connection: "port_channel_device.hpp",
        "waitUntil(flushed, semaphore_.status, fifo_.status, maxSpinCount)"
        => "waitUntil(flushed, nullptr, fifo_.status, maxSpinCount)",
        "channel", channel::a_flush_is_released;
    flush_blind_to_its_proxy: "port_channel_device.hpp",
        "waitUntil(flushed, semaphore_.status, fifo_.status, maxSpinCount)"
        => "waitUntil(flushed, semaphore_.status, nullptr, maxSpinCount)",
        "channel", channel::a_flush_is_released;
    post_blind_to_its_connection: "port_channel_device.hpp",
        "fifo_.post(trigger, position, maxSpinCount, semaphore_.status)"
        => "fifo_.post(trigger, position, maxSpinCount, nullptr)",
        "channel", channel::a_post_that_waits_tells_of_its_connection;
    every_post_looks_at_its_connection: "fifo_device.hpp",
        "return waited ? detail::stickyError(connection) : Status::Ok;"
        => "return detail::stickyError(connection);",
        "channel", channel::a_post_that_waits_tells_of_its_connection;
    wait_blind_to_its_proxy: "port_channel_device.hpp",
        "waitUntil(arrived, semaphore_.status, fifo_.status, maxSpinCount)"
        => "waitUntil(arrived, semaphore_.status, nullptr, maxSpinCount)",
        "channel", channel::a_wait_is_released;
    values_cut_off: "trigger.hpp",
        "if (tooLarge != 0) return trigger;" => "(void)tooLarge;",
        "channel", channel::too_large_is_refused;
    offsets_swapped: "trigger.hpp",
        "trigger.fst = bytes | (srcOffset << TriggerBitsSize);" => "trigger.fst = bytes | (dstOffset << TriggerBitsSize);",
        "channel", channel::each_method_pushes_its_trigger;

    // Packets.
    packet_flag_apart_from_its_data: "packet_device.hpp",
        "memory::storePair(words(), high | val1, high | val2);"
        => "memory::store<scopeSystem>(&data1, val1, memoryOrderRelaxed);
            memory::store<scopeSystem>(&flag1, static_cast<uint32_t>(high >> 32), memoryOrderRelaxed);
            memory::store<scopeSystem>(&data2, val2, memoryOrderRelaxed);
            memory::store<scopeSystem>(&flag2, static_cast<uint32_t>(high >> 32), memoryOrderRelaxed);",
        "packet", packet::weak_packets;
    small_packet_flag_apart_from_its_data: "packet_device.hpp",
        "memory::store<scopeSystem>(&raw_, static_cast<uint64_t>(flag) << 32 | val, memoryOrderRelaxed);"
        => "memory::store<scopeSystem>(&data, val, memoryOrderRelaxed);
            memory::store<scopeSystem>(&this->flag, flag, memoryOrderRelaxed);",
        "packet", packet::weak_packets;
    second_flag_ignored: "packet_device.hpp",
        "return static_cast<uint32_t>(first >> 32) != flag || static_cast<uint32_t>(second >> 32) != flag;"
        => "return static_cast<uint32_t>(first >> 32) != flag;",
        "packet", packet::readers_end;

    // The grid's barrier.
    barrier_does_not_release: "concurrency_device.hpp",
        "atomicFetchAdd<unsigned int, scopeDevice>(count, 1U, memoryOrderRelease);"
        => "atomicFetchAdd<unsigned int, scopeDevice>(count, 1U, memoryOrderRelaxed);",
        "grid", grid::weak_rounds;
    barrier_releases_to_its_block_only: "concurrency_device.hpp",
        "atomicFetchAdd<unsigned int, scopeDevice>(count, 1U, memoryOrderRelease);"
        => "atomicFetchAdd<unsigned int, scopeBlock>(count, 1U, memoryOrderRelease);",
        "grid", grid::weak_rounds;
    barrier_releases_to_its_block_only_in_the_trace: "concurrency_device.hpp",
        "atomicFetchAdd<unsigned int, scopeDevice>(count, 1U, memoryOrderRelease);"
        => "atomicFetchAdd<unsigned int, scopeBlock>(count, 1U, memoryOrderRelease);",
        "grid", grid::traced_round;
    barrier_does_not_acquire: "concurrency_device.hpp",
        "atomicLoad<unsigned int, scopeDevice>(count, memoryOrderAcquire) == all"
        => "atomicLoad<unsigned int, scopeDevice>(count, memoryOrderRelaxed) == all",
        "grid", grid::traced_round;
    barrier_counter_not_reset: "concurrency_device.hpp",
        "atomicStore<unsigned int, scopeDevice>(&count_[(now + 1) % NumCounters], 0U, memoryOrderRelaxed);" => ";",
        "grid", grid::weak_rounds;
    barrier_tells_one_thread_only: "concurrency_device.hpp",
        "return __syncthreads_or(late) ? Status::Timeout : Status::Ok;"
        => "__syncthreads(); return late ? Status::Timeout : Status::Ok;",
        "grid", grid::late_blocks;
}
