// SPDX-License-Identifier: MIT
//! Mutants of what posts to send queues.

use super::{Mutant, is_found};
use crate::queue::{baton, blocks, failures, limits, operations, order, stale, threads, waits};

mutants! {
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
    completion_not_acquired: "queue_state_device.hpp",
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
    ready_not_released_as_mixed_posts_see_it: "queue_device.hpp",
        "      memory::fence<scopeDevice>(memoryOrderRelease);\n      // Only a baton" => "      // Only a baton",
        "queue", baton::weak_for_long;
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
        "(readyWord(end), next, batonAt(end), memoryOrderRelease)" => "(readyWord(end), next, next, memoryOrderRelease)",
        "queue", threads::nobody_is_forgotten;
    baton_left_before_the_doorbell: "queue_device.hpp",
        "      ring(end, probe);\n" => "      memory::compareExchange<scopeDevice>(readyWord(end), next, batonAt(end), memoryOrderRelease);\n      ring(end, probe);\n",
        "queue", order::published;
    baton_not_released: "queue_device.hpp",
        "(readyWord(end), next, batonAt(end), memoryOrderRelease)" => "(readyWord(end), next, batonAt(end), memoryOrderRelaxed)",
        "queue", order::published;
    ready_post_not_seen_when_the_baton_is_left: "queue_device.hpp",
        "        if (was == next) return;" => "        if (was == next || true) return;",
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
        "queue", waits::taken_slots;
    connection_does_not_end_a_wait_with_taken_slots: "queue_device.hpp",
        "waitForRoom(*this, end, -1, {watch.connection, nullptr})" => "waitForRoom(*this, end, -1, {nullptr, nullptr})",
        "queue", waits::taken_slots;

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
        "queue", waits::budgets;
    budget_takes_a_slot_of_the_queue_without_room: "queue_device.hpp",
        "return queue.hasRoom(end) &&" => "return",
        "queue", waits::budgets;
    owner_without_the_lap: "queue_state_device.hpp",
        "const bool lap = (entry & completionEntries) != 0;" => "const bool lap = (entry & (2 * completionEntries)) != 0;",
        "queue", limits::laps;
    completion_index_not_widened: "queue_state_device.hpp",
        "completed + static_cast<uint16_t>(last.position() - static_cast<uint16_t>(completed));" => "completed * 0 + last.position();",
        "queue", limits::laps;
    completed_one_early: "queue_device.hpp",
        "return loadCompleted() >= ticket;" => "return loadCompleted() + 1 >= ticket;",
        "queue", waits::budgets;
    errors_not_looked_at: "queue_state_device.hpp",
        "if (last.opcode() != CompletionWord::success) {" => "if (last.opcode() == 0x10) {",
        "queue", failures::sticky;
    only_one_code_is_an_error: "queue_state_device.hpp",
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
        "queue", waits::aborts;
    waits_blind_to_the_service: "queue_device.hpp",
        "status = detail::stickyError(watch.service);" => "(void)watch.service;",
        "queue", waits::aborts;
    error_of_a_slot_seen_late: "queue_state_device.hpp",
        "if (memory::load<scopeDevice>(&state->consumed, memoryOrderRelaxed) != entry) continue;" => "",
        "queue", failures::stale_looks;
    second_poster_not_noticed: "queue_device.hpp",
        "detail::failQueue(state, causeNotExclusive << 24, ticket());" => ";",
        "queue_debug", failures::not_exclusive;

    // What is posted.
    no_bounds_check: "queue_state_device.hpp",
        "return (access & kind) != 0 && offset <= size && bytes <= size - offset;" => "(void)offset, (void)bytes; return (access & kind) != 0;",
        "queue", blocks::bounds;
    bounds_that_overflow: "queue_state_device.hpp",
        "return (access & kind) != 0 && offset <= size && bytes <= size - offset;" => "return (access & kind) != 0 && offset + bytes <= size;",
        "queue", blocks::bounds;
    no_access_check: "queue_state_device.hpp",
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
