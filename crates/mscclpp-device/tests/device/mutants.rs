// SPDX-License-Identifier: MIT
//! The checks find fault with spoilt headers.
//!
//! Each mutant is a copy of the headers with one piece of text replaced, such as
//! a release made relaxed. The check named with it must fail on the kernels
//! built with the copy; on the headers as they are it passes (see the tests of
//! the module that the check is from).

use std::path::Path;
use std::time::Instant;

use crate::queue::{baton, blocks, failures, limits, operations, order, stale, threads};
use crate::support::{Build, Kernels, Outcome};
use crate::{channel, fifo, grid, packet, semaphore};

struct Mutant {
    header: &'static str,
    from: &'static str,
    to: &'static str,
    kernels: &'static str,
    check: fn(&Kernels) -> Outcome,
}

/// Builds the mutant's kernels. Panics unless the text to replace is there once.
fn build(mutant: &Mutant) -> (Build, Kernels) {
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
        "return hasRoom(position) && memory::compareExchange" => "return memory::compareExchange",
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
        "queue", limits::small_budgets;
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

    // Posting to a send queue: its order.
    no_system_fence: "queue_device.hpp",
        "    memory::fence<scopeSystem>(memoryOrderAcqRel);\n    probe(PostPhase::Fenced);" => "    probe(PostPhase::Fenced);",
        "queue", stale::weak_poster;
    no_system_fence_in_the_trace: "queue_device.hpp",
        "    memory::fence<scopeSystem>(memoryOrderAcqRel);\n    probe(PostPhase::Fenced);" => "    probe(PostPhase::Fenced);",
        "queue", order::published;
    payload_released_to_the_gpu_only: "queue_device.hpp",
        "    memory::fence<scopeSystem>(memoryOrderAcqRel);\n    probe(PostPhase::Fenced);"
        => "    memory::fence<scopeDevice>(memoryOrderAcqRel);\n    probe(PostPhase::Fenced);",
        "queue", stale::weak_poster;
    no_fence_before_the_last_doorbell: "queue_device.hpp",
        "    if (recordInHostMemory != 0) {\n      memory::fence<scopeSystem>(memoryOrderRelease);\n    } else {\n      memory::fence<scopeDevice>(memoryOrderRelease);\n    }\n" => "",
        "queue", stale::weak_poster;
    no_fence_before_the_last_doorbell_in_the_trace: "queue_device.hpp",
        "    if (recordInHostMemory != 0) {\n      memory::fence<scopeSystem>(memoryOrderRelease);\n    } else {\n      memory::fence<scopeDevice>(memoryOrderRelease);\n    }\n" => "",
        "queue", order::published;
    record_in_host_memory_released_to_the_gpu_only: "queue_device.hpp",
        "if (recordInHostMemory != 0) {" => "if (recordInHostMemory == 2) {",
        "queue", stale::weak_poster;
    no_record: "queue_device.hpp",
        "    memory::store<scopeSystem>(record, detail::recordValue(end), memoryOrderRelaxed);\n" => "",
        "queue", operations::direct;
    record_and_last_doorbell_swapped: "queue_device.hpp",
        "    const uint64_t value = detail::doorbellValue(number, end);\n    memory::storeMmio(doorbell, value);\n"
        => "    const uint64_t value = detail::doorbellValue(number, end);\n",
        "queue", order::published;
    no_last_doorbell: "queue_device.hpp",
        "      memory::fence<scopeDevice>(memoryOrderRelease);\n    }\n    memory::storeMmio(doorbell, value);\n"
        => "      memory::fence<scopeDevice>(memoryOrderRelease);\n    }\n",
        "queue", order::published;
    early_doorbell_only: "queue_device.hpp",
        "      memory::fence<scopeDevice>(memoryOrderRelease);\n    }\n    memory::storeMmio(doorbell, value);\n"
        => "      memory::fence<scopeDevice>(memoryOrderRelease);\n    }\n",
        "queue", stale::weak_poster;
    completion_not_acquired: "queue_device.hpp",
        "memory::load<scopeSystem>(words + CompletionWord::offset / 8, memoryOrderAcquire)"
        => "memory::load<scopeSystem>(words + CompletionWord::offset / 8, memoryOrderRelaxed)",
        "queue", order::looks_acquire;

    // A shared queue.
    publisher_does_not_acquire: "queue_device.hpp",
        "memory::fence<scopeSystem>(memoryOrderAcqRel);" => "memory::fence<scopeSystem>(memoryOrderRelease);",
        "queue", threads::another_threads_request;
    publisher_does_not_acquire_in_the_trace: "queue_device.hpp",
        "memory::fence<scopeSystem>(memoryOrderAcqRel);" => "memory::fence<scopeSystem>(memoryOrderRelease);",
        "queue", order::published;
    ready_not_released: "queue_device.hpp",
        "      memory::fence<scopeDevice>(memoryOrderRelease);\n      // Only a baton" => "      // Only a baton",
        "queue", order::handed_over;
    ready_not_released_on_weak_memory: "queue_device.hpp",
        "      memory::fence<scopeDevice>(memoryOrderRelease);\n      // Only a baton" => "      // Only a baton",
        "queue", baton::weak;
    later_words_not_made_ready: "queue_device.hpp",
        "for (uint64_t index = first + 1; index < first + count; ++index) {" => "for (uint64_t index = first + 1; index < first; ++index) {",
        "queue", baton::mixed;
    first_word_not_made_ready: "queue_device.hpp",
        "(readyWord(first), found, readyAt(first), memoryOrderRelaxed) == found)" => "(readyWord(first), found, found, memoryOrderRelaxed) == found)",
        "queue", threads::nobody_is_forgotten;
    baton_not_taken_when_it_comes_late: "queue_device.hpp",
        "memory::compareExchange<scopeDevice>(readyWord(first), found, readyAt(first), memoryOrderRelaxed) == found)"
        => "memory::compareExchange<scopeDevice>(readyWord(first), found, readyAt(first), memoryOrderRelaxed) != batonAt(first) + 1)",
        "queue", baton::late_baton;
    baton_not_left: "queue_device.hpp",
        "(readyWord(end), next, batonAt(end), memoryOrderRelease) == next)" => "(readyWord(end), next, next, memoryOrderRelease) == next)",
        "queue", threads::nobody_is_forgotten;
    baton_left_before_the_doorbell: "queue_device.hpp",
        "      ring(end, probe);\n" => "      memory::compareExchange<scopeDevice>(readyWord(end), next, batonAt(end), memoryOrderRelease);\n      ring(end, probe);\n",
        "queue", order::published;
    baton_not_released: "queue_device.hpp",
        "(readyWord(end), next, batonAt(end), memoryOrderRelease)" => "(readyWord(end), next, batonAt(end), memoryOrderRelaxed)",
        "queue", order::published;
    ready_post_not_seen_when_the_baton_is_left: "queue_device.hpp",
        "(readyWord(end), next, batonAt(end), memoryOrderRelease) == next)" => "(readyWord(end), next, batonAt(end), memoryOrderRelease) != ~next)",
        "queue", baton::late_posts;
    scan_without_the_lap: "queue_device.hpp",
        "if (seen == i && words[i] == readyAt(index + i)) seen = i + 1;" => "if (seen == i && (words[i] & 1) != 0) seen = i + 1;",
        "queue", threads::nobody_is_forgotten;
    scan_skips_what_is_not_ready: "queue_device.hpp",
        "if (seen == i && words[i] == readyAt(index + i)) seen = i + 1;" => "if (words[i] == readyAt(index + i)) seen = i + 1;",
        "queue", baton::mixed;
    slots_handed_out_twice: "queue_device.hpp",
        "slots.first = memory::fetchAdd<scopeDevice>(&state->reserved, count, memoryOrderRelaxed);"
        => "slots.first = memory::load<scopeDevice>(&state->reserved, memoryOrderRelaxed);
            sched_yield();
            memory::store<scopeDevice>(&state->reserved, slots.first + count, memoryOrderRelaxed);",
        "queue", threads::nobody_is_forgotten;
    service_ends_a_wait_with_taken_slots: "queue_device.hpp",
        "waitForRoom(*this, end, -1, {watch.connection, nullptr})" => "waitForRoom(*this, end, -1, watch)",
        "queue", limits::taken_slots;
    connection_does_not_end_a_wait_with_taken_slots: "queue_device.hpp",
        "waitForRoom(*this, end, -1, {watch.connection, nullptr})" => "waitForRoom(*this, end, -1, {nullptr, nullptr})",
        "queue", limits::taken_slots;

    // Room and completions.
    no_credit_check: "queue_device.hpp",
        "    if (end > slots.limit) {" => "    if (end > slots.limit && shared) {",
        "queue", limits::laps;
    no_credit_check_on_a_shared_queue: "queue_device.hpp",
        "    if (end > slots.limit) {" => "    if (end > slots.limit && !shared) {",
        "queue", limits::laps;
    limit_of_a_lap_too_many: "queue_device.hpp",
        "memory::store<scopeDevice>(&state->limit, completed + blocks, memoryOrderRelaxed);" => "memory::store<scopeDevice>(&state->limit, completed + 2 * blocks, memoryOrderRelaxed);",
        "queue", limits::laps;
    limit_not_raised: "queue_device.hpp",
        "memory::store<scopeDevice>(&state->limit, completed + blocks, memoryOrderRelaxed);" => "",
        "queue", limits::looks_at_completions;
    one_slot_too_many: "queue_device.hpp",
        "      if (end - completed > blocks) return false;" => "      if (end - completed > blocks + 1) return false;",
        "queue", limits::budgets;
    budget_takes_a_slot_of_the_queue_without_room: "queue_device.hpp",
        "return queue.hasRoom(end) &&" => "return",
        "queue", limits::budgets;
    owner_without_the_lap: "queue_device.hpp",
        "const bool lap = (entry & completionEntries) != 0;" => "const bool lap = (entry & (2 * completionEntries)) != 0;",
        "queue", limits::laps;
    completion_index_not_widened: "queue_device.hpp",
        "completed + static_cast<uint16_t>(last.position() - static_cast<uint16_t>(completed));" => "completed * 0 + last.position();",
        "queue", limits::laps;
    completed_one_early: "queue_device.hpp",
        "return loadCompleted() >= ticket;" => "return loadCompleted() + 1 >= ticket;",
        "queue", limits::budgets;
    errors_not_looked_at: "queue_device.hpp",
        "if (last.opcode() != CompletionWord::success) {" => "if (last.opcode() == 0x10) {",
        "queue", failures::sticky;
    only_one_code_is_an_error: "queue_device.hpp",
        "if (last.opcode() != CompletionWord::success) {" => "if (last.opcode() == 0xd) {",
        "queue", failures::unknown_completions;
    error_not_sticky: "queue_device.hpp",
        "    if (slots.failed != Status::Ok) return slots.failed;\n    const uint64_t first" => "    const uint64_t first",
        "queue", failures::sticky;
    waits_blind_to_the_queue: "queue_device.hpp",
        "        consume();\n        status = error();" => "        (void)this;",
        "queue", failures::sticky;
    waits_blind_to_the_connection: "queue_device.hpp",
        "Status status = detail::stickyError(watch.connection);" => "Status status = Status::Ok;",
        "queue", limits::aborts;
    waits_blind_to_the_service: "queue_device.hpp",
        "status = detail::stickyError(watch.service);" => "(void)watch.service;",
        "queue", limits::aborts;
    error_of_a_slot_seen_late: "queue_device.hpp",
        "if (memory::load<scopeDevice>(&state->consumed, memoryOrderRelaxed) != entry) continue;" => "",
        "queue", failures::stale_looks;
    second_poster_not_noticed: "queue_device.hpp",
        "detail::failQueue(state, causeNotExclusive << 24, ticket());" => ";",
        "queue_debug", failures::not_exclusive;

    // What is posted.
    no_bounds_check: "queue_device.hpp",
        "return (access & kind) != 0 && offset <= size && bytes <= size - offset;" => "(void)offset, (void)bytes; return (access & kind) != 0;",
        "queue", blocks::bounds;
    bounds_that_overflow: "queue_device.hpp",
        "return (access & kind) != 0 && offset <= size && bytes <= size - offset;" => "return (access & kind) != 0 && offset + bytes <= size;",
        "queue", blocks::bounds;
    no_access_check: "queue_device.hpp",
        "return (access & kind) != 0 && offset" => "(void)kind; return offset",
        "queue", blocks::bounds;
    absent_ids_not_noticed: "queue_channel_device.hpp",
        "if (id >= maxMemories) return {0, 0, 0, 0};" => "id %= maxMemories;",
        "queue", blocks::bounds;
    alignment_of_sums_not_checked: "queue_channel_device.hpp",
        "if ((dst.address + dstOffset) % 8 != 0) return Status::InvalidArgument;" => "",
        "queue", blocks::bounds;
    results_land_in_user_memory: "queue_channel_device.hpp",
        "operand, reinterpret_cast<uint64_t>(queue.scratch),
                                         queue.scratchKey);" => "operand, to, key);",
        "queue", operations::direct;
    pieces_not_moved_on: "queue_channel_device.hpp",
        "remoteKey, local + done, localKey," => "remoteKey, local, localKey,",
        "queue", limits::split;
    signal_before_its_payload: "queue_channel_device.hpp",
        "return i == parts ? channel.signalRequest()" => "if (transfer.withSignal) { if (i == 0) return channel.signalRequest(); --i; }\n        return i == parts ? channel.signalRequest()",
        "queue", blocks::as_the_encoder_writes;
    signal_before_its_payload_in_a_post_of_two: "queue_channel_device.hpp",
        "return i == 1 ? signalRequest()" => "return i + 1 == signals ? signalRequest()",
        "queue", blocks::as_the_encoder_writes;
    signals_as_writes_not_counted: "queue_channel_device.hpp",
        "if (queue.signalMode != SignalMode::Atomic && posted == Status::Ok) {" => "if (posted != Status::Ok) {",
        "queue", blocks::as_the_encoder_writes;
    key_in_the_machines_order: "work_request_device.hpp",
        "segment(1, bigEndian(address), fields(key, 0));" => "segment(1, bigEndian(address), fields(bigEndian(key), 0));",
        "queue", blocks::golden;
    position_not_in_the_request: "work_request_device.hpp",
        "const uint32_t position = static_cast<uint32_t>(index & 0xffff);" => "const uint32_t position = static_cast<uint32_t>(index & 0xff);",
        "queue", blocks::golden;
    last_request_not_signalled: "queue_device.hpp",
        "const bool tells = signalEvery != 0 || i + 1 == count;" => "const bool tells = signalEvery != 0;",
        "queue", limits::laps;
}
