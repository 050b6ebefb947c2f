// SPDX-License-Identifier: MIT
//! What only a GPU can show. Without a driver every test is ignored, with the reason printed.

mod gpunetio;
#[path = "../oracle/mod.rs"]
#[allow(
    dead_code,
    reason = "what spoils a side, and steps, are for CPU threads"
)]
mod oracle;
mod trace;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp_device::LaunchDims;
use mscclpp_device::cuda::{
    self, CudaError, CudaKernel, DeviceMemory, Event, Export, Gpu, Graph, HostPages,
    ImportedMemory, Module, PinnedMemory, Stream,
};
use mscclpp_device::nvrtc::Program;

type Outcome = Result<(), Failed>;
/// A test, its name, and how many GPUs it needs.
type Test = (&'static str, u32, fn() -> Outcome);

const TESTS: &[Test] = &[
    ("gpus_tell_what_they_are", 1, gpus_tell_what_they_are),
    ("memory_is_zeroed", 1, memory_is_zeroed),
    ("kernels_run_and_check_arguments", 1, kernels_run),
    ("graphs_run_again_and_again", 1, graphs_run_again),
    ("compiled_kernels_are_kept", 1, compiled_kernels_are_kept),
    (
        "nothing_waits_for_a_spinning_kernel",
        1,
        beside_a_spinning_kernel,
    ),
    (
        "copies_pass_more_kernels_than_there_are_queues",
        1,
        copies_beside_many_kernels,
    ),
    ("exports_open_again", 1, exports_open_again),
    (
        "a_signal_written_by_a_stream_is_behind_its_copies",
        1,
        signals_are_ordered,
    ),
    ("trace_records_of_kernels", 1, trace::kernels_leave_a_trace),
    ("trace_clocks_are_measured", 1, trace::clocks_are_measured),
    ("the_callers_context_comes_back", 1, the_context_comes_back),
    ("two_gpus_reach_each_other", 2, two_gpus),
    (
        "a_signal_to_the_peer_is_behind_its_copies",
        2,
        signals_to_a_peer,
    ),
    (gpunetio::NAME, 1, gpunetio::equals),
];

const SOON: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let gpus = cuda::gpu_count();
    let trials = TESTS.iter().map(|&(name, needs, test)| {
        let missing = match &gpus {
            Ok(count) if *count >= needs && name == gpunetio::NAME => gpunetio::missing(),
            Ok(count) if *count >= needs => None,
            Ok(count) => Some(format!("needs {needs} GPUs, there are {count}")),
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = &missing {
            println!("SKIP {name}: {reason}");
        }
        Trial::test(name, test).with_ignored_flag(missing.is_some())
    });
    let trials = trials.collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn ensure(holds: bool, what: impl Into<String>) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(what.into().into())
    }
}

fn module(gpu: &Gpu) -> Result<Module, CudaError> {
    Module::compile(gpu, &Program::new("kernels.cu", include_str!("kernels.cu")))
}

fn kernel(gpu: &Gpu, name: &str) -> Result<CudaKernel, CudaError> {
    // SAFETY: each test gives the twin of the C++ struct, and keeps what it names.
    unsafe { module(gpu)?.kernel(name) }
}

const ONE: LaunchDims = LaunchDims { grid: 1, block: 1 };

/// A word of pinned memory, as the host sees it.
fn word(memory: &PinnedMemory, index: usize) -> &std::sync::atomic::AtomicU64 {
    // SAFETY: aligned words inside pages that live as long as the reference, never accessed otherwise
    // by the host.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(memory.as_ptr().cast::<u64>().add(index)) }
}

fn load(memory: &PinnedMemory, index: usize) -> u64 {
    word(memory, index).load(std::sync::atomic::Ordering::Acquire)
}

fn store(memory: &PinnedMemory, index: usize, value: u64) {
    word(memory, index).store(value, std::sync::atomic::Ordering::Release);
}

/// The first words of memory of a GPU.
fn read(stream: &Stream, address: u64, words: usize) -> Result<Vec<u64>, CudaError> {
    let host = PinnedMemory::new(&stream.gpu(), words as u64 * 8)?;
    // SAFETY: both live until the wait is over, or for ever.
    unsafe { stream.copy(host.address(), address, words as u64 * 8) }?;
    if let Err(error) = stream.wait(SOON) {
        std::mem::forget(host);
        return Err(error);
    }
    Ok((0..words).map(|index| load(&host, index)).collect())
}

fn gpus_tell_what_they_are() -> Outcome {
    for ordinal in 0..cuda::gpu_count()? {
        let gpu = Gpu::open(ordinal)?;
        println!(
            "{gpu:?}: {}, {}, sm_{}, NUMA node {:?}, driver {:?}",
            gpu.name()?,
            gpu.uuid()?,
            gpu.arch()?,
            gpu.numa_node(),
            cuda::driver_version()?
        );
        ensure(Gpu::by_uuid(&gpu.uuid()?)? == gpu, "its UUID names another")?;
    }
    for missing in [cuda::gpu_count()?, u32::MAX] {
        ensure(
            matches!(Gpu::open(missing), Err(CudaError::NoGpu { .. })),
            "a GPU that is not there",
        )?;
    }
    ensure(Gpu::by_uuid("GPU-00").is_err(), "a UUID of nobody")
}

fn memory_is_zeroed() -> Outcome {
    let gpu = Gpu::open(0)?;
    let stream = Stream::new(&gpu)?;
    for bytes in [8, 256, 4096, 300 << 10, 5 << 20] {
        for _ in 0..3 {
            let memory = DeviceMemory::new(&gpu, bytes)?;
            ensure(memory.address() % 256 == 0, "aligned")?;
            let words = (bytes as usize / 8).min(4096);
            let found = read(&stream, memory.address(), words)?;
            ensure(
                found.iter().all(|word| *word == 0),
                format!("{bytes} bytes"),
            )?;
            let end = memory.address() + bytes - 8;
            ensure(read(&stream, end, 1)? == [0], "its last word")?;
            // Dirty, for who comes next.
            // SAFETY: the memory lives until the stream has been waited for.
            unsafe { stream.fill(memory.address(), 0xff, bytes) }?;
            stream.wait(SOON)?;
        }
    }
    ensure(DeviceMemory::new(&gpu, 0).is_err(), "no bytes")?;
    ensure(DeviceMemory::new(&gpu, 1 << 45).is_err(), "32 TiB")
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Add {
    sum: u64,
    value: u64,
}

fn kernels_run() -> Outcome {
    let gpu = Gpu::open(0)?;
    let (stream, sum) = (Stream::new(&gpu)?, DeviceMemory::new(&gpu, 8)?);
    let add = kernel(&gpu, "add")?;
    let args = Add {
        sum: sum.address(),
        value: 3,
    };
    for _ in 0..2 {
        add.launch(LaunchDims { grid: 7, block: 33 }, args, &stream)?
            .join(SOON)?;
    }
    let found = read(&stream, sum.address(), 1)?;
    ensure(found == [2 * 7 * 33 * 3], format!("{found:?}"))?;
    let wrong = add.launch(ONE, 1u32, &stream);
    ensure(
        matches!(wrong, Err(CudaError::Arguments { .. })),
        format!("{wrong:?}"),
    )?;
    for (grid, block) in [(0, 1), (1, 0), (1, 1025)] {
        let wrong = add.launch(LaunchDims { grid, block }, args, &stream);
        ensure(
            matches!(wrong, Err(CudaError::Dimensions { .. })),
            format!("{wrong:?}"),
        )?;
    }
    ensure(kernel(&gpu, "nothing").is_err(), "no such kernel")
}

fn graphs_run_again() -> Outcome {
    let gpu = Gpu::open(0)?;
    let (stream, sum) = (Stream::new(&gpu)?, DeviceMemory::new(&gpu, 8)?);
    let add = kernel(&gpu, "add")?;
    let sum = sum.address();
    let mut graph = Graph::capture(&stream, || {
        for value in [1, 10] {
            add.enqueue(ONE, Add { sum, value }, &stream)?;
        }
        Ok(add.clone())
    })?;
    ensure(
        read(&stream, sum, 1)? == [0],
        "nothing ran while it was captured",
    )?;
    for _ in 0..1000 {
        graph.launch(&stream)?;
    }
    let found = read(&stream, sum, 1)?;
    ensure(found == [11_000], format!("{found:?}"))?;
    let failed = Graph::capture(&stream, || add.launch(ONE, 1u8, &stream).map(drop));
    ensure(failed.is_err(), "what the work says")?;
    ensure(read(&stream, sum, 1)? == [11_000], "the stream goes on")
}

fn compiled_kernels_are_kept() -> Outcome {
    let gpu = Gpu::open(0)?;
    let nonce = format!("// {:?}\n", std::time::SystemTime::now());
    let program = || Program::new("kept.cu", nonce.clone() + include_str!("kernels.cu"));
    let mut took = [Duration::ZERO; 2];
    for took in &mut took {
        let started = Instant::now();
        Module::compile(&gpu, &program())?;
        *took = started.elapsed();
    }
    println!("compiled in {:?}, found in {:?}", took[0], took[1]);
    ensure(took[1] * 3 < took[0], "the second time it was there")
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Spin {
    until: u64,
    running: u64,
}

fn beside_a_spinning_kernel() -> Outcome {
    let gpu = Gpu::open(0)?;
    let flags = PinnedMemory::new(&gpu, 4096)?;
    let (stream, other) = (Stream::new(&gpu)?, Stream::new(&gpu)?);
    let before = DeviceMemory::new(&gpu, 64 << 20)?;
    let add = kernel(&gpu, "add")?;
    let spin = kernel(&gpu, "spin")?;
    let args = Spin {
        until: flags.address(),
        running: flags.address() + 8,
    };
    let running = spin.launch(ONE, args, &stream)?;
    let started = Instant::now();
    while load(&flags, 1) == 0 && started.elapsed() < SOON {
        std::thread::yield_now();
    }
    let mut slow = Vec::new();
    let mut time = |what: &str, work: &mut dyn FnMut() -> Outcome| -> Outcome {
        let started = Instant::now();
        let result = work();
        let took = started.elapsed();
        println!("{what}: {took:?}");
        if took > Duration::from_secs(1) {
            slow.push(what.to_owned());
        }
        result
    };
    let mut large = None;
    let mut small = None;
    let mut pinned = None;
    let result = (|| -> Outcome {
        time("allocate 64 MiB", &mut || {
            large = Some(DeviceMemory::new(&gpu, 64 << 20)?);
            Ok(())
        })?;
        time("allocate 64 B", &mut || {
            small = Some(DeviceMemory::new(&gpu, 64)?);
            Ok(())
        })?;
        time("free both", &mut || {
            drop((large.take(), small.take()));
            Ok(())
        })?;
        time("pin host memory", &mut || {
            pinned = Some(PinnedMemory::new(&gpu, 1 << 20)?);
            Ok(())
        })?;
        time("let go of it", &mut || {
            drop(pinned.take());
            Ok(())
        })?;
        time("copy", &mut || {
            // SAFETY: both live until the stream has been waited for.
            unsafe { other.copy(before.address(), flags.address() + 64, 64) }?;
            Ok(other.wait(SOON)?)
        })?;
        time("launch another kernel", &mut || {
            let sum = before.address();
            Ok(add.launch(ONE, Add { sum, value: 1 }, &other)?.join(SOON)?)
        })?;
        time("make a stream", &mut || {
            drop(Stream::new(&gpu)?);
            Ok(())
        })?;
        time("export and import", &mut || {
            let size = before.len();
            drop(ImportedMemory::open(&gpu, before.export()?, size)?);
            Ok(())
        })
    })();
    store(&flags, 0, 1);
    running.join(SOON)?;
    result?;
    ensure(
        slow.is_empty(),
        format!("these waited for the kernel: {slow:?}"),
    )
}

/// More kernels spin than the GPU has queues for streams. What comes after the one that got none is
/// held up; streams for copies are not.
fn copies_beside_many_kernels() -> Outcome {
    const KERNELS: u64 = 40;
    /// Far above what a copy takes.
    const COPIED_WITHIN: Duration = Duration::from_millis(500);
    let gpu = Gpu::open(0)?;
    let flags = PinnedMemory::new(&gpu, 4096)?;
    let memory = DeviceMemory::new(&gpu, 4096)?;
    let spin = kernel(&gpu, "spin")?;
    let several = |count, make: fn(&Gpu) -> Result<Stream, CudaError>| -> Result<Vec<_>, _> {
        (0..count).map(|_| make(&gpu)).collect()
    };
    let streams = several(KERNELS, Stream::new)?;
    let (plain, preferred) = (several(32, Stream::new)?, several(8, Stream::for_copies)?);
    for (stream, i) in streams.iter().zip(1..) {
        let args = Spin {
            until: flags.address(),
            running: flags.address() + 8 * i,
        };
        spin.enqueue(ONE, args, stream)?;
    }
    let running = || {
        (1..=KERNELS as usize)
            .filter(|i| load(&flags, *i) != 0)
            .count()
    };
    let started = Instant::now();
    while running() < KERNELS as usize && started.elapsed() < Duration::from_secs(1) {
        std::thread::yield_now();
    }
    let at_once = running();
    let copies = |streams: &[Stream]| -> Result<usize, CudaError> {
        for stream in streams {
            // SAFETY: memory that lives until all streams have been waited for.
            unsafe { stream.copy(memory.address() + 64, memory.address(), 8) }?;
            // SAFETY: as above.
            unsafe { stream.write_u64(memory.address() + 128, 1) }?;
        }
        std::thread::sleep(COPIED_WITHIN);
        let idle: Result<Vec<bool>, _> = streams.iter().map(Stream::is_idle).collect();
        Ok(idle?.into_iter().filter(|idle| *idle).count())
    };
    let (passed, of) = (copies(&preferred)?, preferred.len());
    let plainly = copies(&plain)?;
    println!(
        "{at_once} of {KERNELS} kernels run at once; of streams for copies {passed} of {of} pass them, \
         of others {plainly} of {}",
        plain.len()
    );
    store(&flags, 0, 1);
    for stream in streams.iter().chain(&plain).chain(&preferred) {
        stream.wait(SOON)?;
    }
    ensure(running() == KERNELS as usize, "all ran in the end")?;
    ensure(passed == of, "copies wait for kernels")
}

fn exports_open_again() -> Outcome {
    let gpu = Gpu::open(0)?;
    let stream = Stream::new(&gpu)?;
    for (bytes, at) in [(64u64, 0u64), (4 << 20, 1 << 20)] {
        let memory = DeviceMemory::new(&gpu, bytes)?;
        let value = PinnedMemory::new(&gpu, 8)?;
        store(&value, 0, 77 + bytes);
        // SAFETY: both live until the stream has been waited for.
        unsafe { stream.copy(memory.address() + at, value.address(), 8) }?;
        stream.wait(SOON)?;
        // SAFETY: allocated memory.
        let by_address = unsafe { cuda::export(&gpu, memory.address(), bytes) }?;
        for export in [memory.export()?, by_address] {
            println!("{export:?}");
            let Export::Fd { block, .. } = &export else {
                return Err("a file descriptor was expected".into());
            };
            let too_long = *block + 1;
            let imported = ImportedMemory::open(&gpu, export, bytes)?;
            let found = read(&stream, imported.address() + at, 1)?;
            ensure(found == [77 + bytes], format!("{found:?}"))?;
            let wrong = ImportedMemory::open(&gpu, memory.export()?, too_long);
            ensure(wrong.is_err(), "more than was exported")?;
        }
        let imported = ImportedMemory::open(&gpu, memory.export()?, bytes)?;
        drop(memory);
        let found = read(&stream, imported.address() + at, 1)?;
        ensure(
            found == [77 + bytes],
            "the exporter's going took the memory along",
        )?;
    }
    let file = std::fs::File::open("/dev/null")?;
    let fake = Export::Fd {
        fd: file.into(),
        block: 2 << 20,
        offset: 0,
    };
    let wrong = ImportedMemory::open(&gpu, fake, 8);
    ensure(wrong.is_err(), "a descriptor of something else")?;
    println!("{}", wrong.expect_err("seen"));
    let fake = Export::Legacy {
        handle: [7; 64],
        offset: 0,
    };
    ensure(
        ImportedMemory::open(&gpu, fake, 8).is_err(),
        "a handle of nothing",
    )
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Expect {
    payload: u64,
    signal: u64,
    count: u64,
    words: u64,
    stale: u64,
}

/// Copies and signals from `from`, looked at by a kernel on `at`.
fn ordered(from: &Gpu, at: &Gpu) -> Outcome {
    const COUNT: u64 = 500;
    const WORDS: u64 = 1024;
    let payload = DeviceMemory::new(at, WORDS * 8)?;
    let results = DeviceMemory::new(at, 16)?;
    let source = PinnedMemory::new(from, COUNT * WORDS * 8)?;
    for index in 0..COUNT * WORDS {
        store(&source, index as usize, index / WORDS + 1);
    }
    let staged = DeviceMemory::new(from, WORDS * 8)?;
    let (copies, kernels) = (Stream::new(from)?, Stream::new(at)?);
    let args = Expect {
        payload: payload.address(),
        signal: results.address(),
        count: COUNT,
        words: WORDS,
        stale: results.address() + 8,
    };
    let dims = LaunchDims {
        grid: 1,
        block: 128,
    };
    let running = kernel(at, "expect")?.launch(dims, args, &kernels)?;
    let mut result = Ok(());
    for n in 1..=COUNT {
        let line = source.address() + (n - 1) * WORDS * 8;
        // SAFETY: all of it lives until the kernel has ended and the streams are idle.
        result = unsafe {
            copies
                .copy(staged.address(), line, WORDS * 8)
                .and_then(|()| copies.copy(payload.address(), staged.address(), WORDS * 8))
                .and_then(|()| copies.write_u64(results.address(), n))
        };
        if result.is_err() {
            break;
        }
    }
    running.join(SOON)?;
    copies.wait(SOON)?;
    result?;
    let found = read(&kernels, results.address(), 2)?;
    ensure(
        found == [COUNT, 0],
        format!("signal and stale words: {found:?}"),
    )
}

fn signals_are_ordered() -> Outcome {
    let gpu = Gpu::open(0)?;
    ordered(&gpu, &gpu)
}

fn signals_to_a_peer() -> Outcome {
    let (a, b) = (Gpu::open(0)?, Gpu::open(1)?);
    if !a.can_reach(&b)? {
        println!("the GPUs cannot reach each other");
        return Ok(());
    }
    ordered(&a, &b)?;
    ordered(&b, &a)
}

fn the_context_comes_back() -> Outcome {
    use cudarc::driver::sys::{cuCtxGetCurrent, cuCtxSetCurrent};
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: a valid place to write to.
        let _ = unsafe { cuCtxGetCurrent(&mut context) };
        context
    };
    let gpu = Gpu::open(0)?;
    let work = || -> Outcome {
        let stream = Stream::new(&gpu)?;
        let memory = DeviceMemory::new(&gpu, 1 << 20)?;
        read(&stream, memory.address(), 1)?;
        let event = Event::new(&gpu)?;
        event.record(&stream)?;
        drop(ImportedMemory::open(&gpu, memory.export()?, 8)?);
        kernel(&gpu, "add")?;
        let page = PinnedMemory::new(&gpu, 4096)?;
        let late = HostPages::new(4096)?;
        late.pin(&gpu)?;
        late.pin(&gpu)?;
        let at = late.address();
        // SAFETY: both live until the stream has been waited for.
        unsafe { stream.copy(page.address(), at, 64) }?;
        stream.wait(SOON)?;
        drop(late);
        let again = PinnedMemory::new(&gpu, 100)?;
        ensure(again.address() == at, "pinned pages are used again")
    };
    ensure(current().is_null(), "a new thread has none")?;
    work()?;
    ensure(current().is_null(), "none afterwards")?;
    let last = Gpu::open(cuda::gpu_count()? - 1)?;
    let entered = last.enter()?;
    let own = current();
    work()?;
    ensure(current() == own && !own.is_null(), "another's context")?;
    drop(entered);
    ensure(current().is_null(), "and none again")?;
    // SAFETY: no context is a valid context to set.
    let _ = unsafe { cuCtxSetCurrent(std::ptr::null_mut()) };
    Ok(())
}

fn two_gpus() -> Outcome {
    let gpus = [Gpu::open(0)?, Gpu::open(1)?];
    for (here, there) in [(gpus[0], gpus[1]), (gpus[1], gpus[0])] {
        println!("{here:?} reaches {there:?}: {}", here.can_reach(&there)?);
        if !here.can_reach(&there)? {
            continue;
        }
        let stream = Stream::new(&here)?;
        let sum = DeviceMemory::new(&there, 8)?;
        let args = Add {
            sum: sum.address(),
            value: 5,
        };
        kernel(&here, "add")?
            .launch(LaunchDims { grid: 2, block: 2 }, args, &stream)?
            .join(SOON)?;
        let found = read(&Stream::new(&there)?, sum.address(), 1)?;
        ensure(found == [20], format!("a kernel's stores: {found:?}"))?;
        let imported = ImportedMemory::open(&here, sum.export()?, 8)?;
        let found = read(&stream, imported.address(), 1)?;
        ensure(found == [20], format!("imported: {found:?}"))?;
    }
    Ok(())
}
