// SPDX-License-Identifier: MIT
//! The measurements of one run, in turns: single posts here, many in [`rush`](super::rush).

use std::path::Path;

use anyhow::{Context as _, ensure};
use mscclpp_device::LaunchDims;
use mscclpp_device::abi::{PortChannelDeviceHandle, QueueForm};
use mscclpp_device::cuda::{CudaKernel, Gpu, Module, Stream};
use mscclpp_device::nvrtc::Program;

use super::gpunetio;
use super::memory::{Channels, Names, PATIENCE, QpArgs, Queues, Results};
use super::report::{Call, Condition, Figure, Form, Metric, Posters, Report, Subject};
use super::responder::Responder;
use super::rush::{BLOCKS, RUSH_BLOCKS, SHARED_BLOCKS};

/// Shared by our kernels and those that call GPUNetIO.
pub(super) const MEASURE: &str = include_str!("../../../kernels/cuda/measure.hpp");
const SOURCE: &str = include_str!("../../../kernels/cuda/post.cu");

/// Posts of one measurement.
const POSTS: u64 = 400;
/// Between two posts.
const PAUSE_NS: u64 = 5000;
/// What precedes the first measurement: clocks rise, code is loaded.
const WARM_UP: u32 = 20;

/// Threads of a block where a kernel has several.
pub(super) const BLOCK: u32 = 128;

const PHASES: [&str; 6] = [
    "phase: check",
    "phase: reserve",
    "phase: write requests",
    "phase: hand over",
    "phase: system fence",
    "phase: doorbell, record, doorbell",
];

/// Twin of `posting::Plan`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Plan {
    answer: u64,
    times: u64,
    summary: u64,
    posts: u64,
    pause_ns: u64,
    loading: u32,
    answered: u32,
}

/// Twin of `PostArgs` and `RushArgs` in `post.cu` and `gpunetio.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Args<A, B>(pub(super) A, pub(super) B);
/// What GPUNetIO's kernels post to.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Theirs {
    qp: u64,
    names: Names,
}

pub(super) struct Kernels {
    put_with_signal: CudaKernel,
    put: CudaKernel,
    signal: CudaKernel,
    phases: CudaKernel,
    pub(super) rush: CudaKernel,
}

pub(super) struct TheirKernels {
    version: String,
    make: CudaKernel,
    shared: CudaKernel,
    exclusive: CudaKernel,
    pub(super) rush_shared: CudaKernel,
    pub(super) rush_exclusive: CudaKernel,
}

pub(super) struct Bench {
    pub(super) stream: Stream,
    /// One queue of the largest size.
    pub(super) one: Queues,
    /// A queue a block.
    pub(super) many: Queues,
    pub(super) channels: Channels,
    pub(super) results: Results,
    pub(super) ours: Kernels,
    pub(super) theirs: Option<TheirKernels>,
}

/// All figures.
pub(super) fn run(quick: bool, checkout: Option<&Path>) -> anyhow::Result<Report> {
    let gpu = Gpu::open(0)?;
    let name = format!("{}, sm_{}", gpu.name()?, gpu.arch()?);
    let bench = Bench::new(&gpu, checkout)?;
    let rounds = if quick { 1 } else { 5 };
    let version = bench.theirs.as_ref().map(|theirs| theirs.version.clone());
    match bench.figures(rounds) {
        Ok(figures) => Ok(Report::new(name, version, figures)),
        Err(error) => {
            // A kernel may still post to it.
            std::mem::forget(bench);
            Err(error)
        }
    }
}

impl Bench {
    fn new(gpu: &Gpu, checkout: Option<&Path>) -> anyhow::Result<Self> {
        let program = Program::new("post.cu", SOURCE).header("measure.hpp", MEASURE);
        let module = Module::compile(gpu, &program).context("compile the kernels")?;
        // SAFETY: defined by the source, and launched below with the twins of their arguments.
        let ours = unsafe {
            Kernels {
                put_with_signal: module.kernel("post_put_with_signal")?,
                put: module.kernel("post_put")?,
                signal: module.kernel("post_signal")?,
                phases: module.kernel("post_phases")?,
                rush: module.kernel("post_rush")?,
            }
        };
        let theirs = |checkout| {
            let compiled = gpunetio::compile(gpu, checkout)?;
            let module = Module::load(gpu, &compiled.cubin)?;
            // SAFETY: as above.
            anyhow::Ok(unsafe {
                TheirKernels {
                    version: compiled.version,
                    make: module.kernel("gpunetio_make")?,
                    shared: module.kernel("gpunetio_shared")?,
                    exclusive: module.kernel("gpunetio_exclusive")?,
                    rush_shared: module.kernel("gpunetio_rush_shared")?,
                    rush_exclusive: module.kernel("gpunetio_rush_exclusive")?,
                }
            })
        };
        let most = BLOCKS.iter().max().copied().unwrap_or(1);
        Ok(Self {
            stream: Stream::new(gpu)?,
            one: Queues::new(gpu, 1, SHARED_BLOCKS)?,
            many: Queues::new(gpu, most, RUSH_BLOCKS)?,
            channels: Channels::new(gpu, most)?,
            results: Results::new(gpu, 8192)?,
            ours,
            theirs: checkout.map(theirs).transpose()?,
        })
    }

    /// Every measurement `rounds` times, in turns.
    fn figures(&self, rounds: u32) -> anyhow::Result<Vec<Figure>> {
        let single = self.single_posts();
        let rushes = self.rushes();
        for _ in 0..WARM_UP {
            self.single(single[0])?;
        }
        let mut samples: Vec<(Subject, Vec<f64>)> = Vec::new();
        let mut add = |subject, found: Vec<f64>| match samples
            .iter_mut()
            .find(|(known, _)| *known == subject)
        {
            Some((_, all)) => all.extend(found),
            None => samples.push((subject, found)),
        };
        for round in 1..=rounds {
            eprintln!("posting: round {round} of {rounds}");
            for &subject in &single {
                add(
                    subject,
                    self.single(subject).with_context(|| subject.to_string())?,
                );
            }
            for form in [Form::Exclusive, Form::Shared] {
                for condition in [Condition::Quiet, Condition::PingPong] {
                    let phases = self.phases(form, condition)?;
                    for (name, found) in PHASES.into_iter().zip(phases) {
                        let subject = Subject {
                            form,
                            call: Call::PutWithSignal,
                            condition,
                            metric: Metric::Phase(name),
                            posters: Posters::ONE,
                        };
                        add(subject, found);
                    }
                }
            }
            for &subject in &rushes {
                let rate = self.rush(subject).with_context(|| subject.to_string())?;
                add(subject, vec![rate]);
            }
        }
        let figures = samples.into_iter();
        figures
            .map(|(subject, samples)| Figure::new(subject, &samples))
            .collect()
    }

    /// Posts of one thread, one after the other.
    fn single_posts(&self) -> Vec<Subject> {
        use Call::{Put, PutWithSignal, Signal};
        let mut calls = vec![
            (Form::Proxy, PutWithSignal),
            (Form::Exclusive, PutWithSignal),
            (Form::Exclusive, Put),
            (Form::Exclusive, Signal),
            (Form::Shared, PutWithSignal),
            (Form::Shared, Put),
            (Form::Shared, Signal),
        ];
        if self.theirs.is_some() {
            calls.push((Form::TheirExclusive, PutWithSignal));
            calls.push((Form::TheirShared, PutWithSignal));
        }
        let mut subjects = Vec::new();
        for (form, call) in calls {
            for condition in [Condition::Quiet, Condition::PingPong] {
                for metric in [Metric::Returns, Metric::Answered] {
                    subjects.push(Subject {
                        form,
                        call,
                        condition,
                        metric,
                        posters: Posters::ONE,
                    });
                }
            }
        }
        subjects
    }

    pub(super) fn channel(queues: &Queues, form: Form, number: u32) -> PortChannelDeviceHandle {
        match form {
            Form::Proxy => queues.proxy(),
            Form::Exclusive => queues.channel(number, QueueForm::Exclusive),
            _ => queues.channel(number, QueueForm::Shared),
        }
    }

    pub(super) fn their_kernels(&self) -> anyhow::Result<&TheirKernels> {
        self.theirs
            .as_ref()
            .context("GPUNetIO's headers were not given")
    }

    /// Makes GPUNetIO's queues on the memory of ours.
    pub(super) fn theirs(&self, queues: &Queues) -> anyhow::Result<Theirs> {
        let made_of: QpArgs = queues.theirs_made_of();
        let dims = LaunchDims {
            grid: made_of.count.div_ceil(BLOCK),
            block: BLOCK,
        };
        self.end(&self.their_kernels()?.make, dims, made_of)?;
        Ok(Theirs {
            qp: made_of.qps,
            names: queues.names(),
        })
    }

    pub(super) fn end<T: Copy>(
        &self,
        kernel: &CudaKernel,
        dims: LaunchDims,
        args: T,
    ) -> anyhow::Result<()> {
        Ok(kernel.launch(dims, args, &self.stream)?.join(PATIENCE)?)
    }

    /// Nanoseconds of each post.
    fn single(&self, subject: Subject) -> anyhow::Result<Vec<f64>> {
        let Subject { form, call, .. } = subject;
        self.measure(
            form,
            subject.condition,
            subject.metric == Metric::Answered,
            POSTS,
            |plan| {
                let kernel = match (form, call) {
                    (Form::TheirExclusive | Form::TheirShared, _) => {
                        let kernels = self.their_kernels()?;
                        let kernel = match form {
                            Form::TheirExclusive => &kernels.exclusive,
                            _ => &kernels.shared,
                        };
                        let args = Args(self.theirs(&self.one)?, plan);
                        return self.end(kernel, ONE, args);
                    }
                    (_, Call::PutWithSignal) => &self.ours.put_with_signal,
                    (_, Call::Put) => &self.ours.put,
                    (_, Call::Signal) => &self.ours.signal,
                };
                self.end(kernel, ONE, Args(Self::channel(&self.one, form, 0), plan))
            },
        )
    }

    /// Nanoseconds of each post's phases: all of the first, then all of the second, ...
    fn phases(&self, form: Form, condition: Condition) -> anyhow::Result<Vec<Vec<f64>>> {
        let count = PHASES.len();
        let words = (count as u64 + 1) * POSTS;
        let times = self.measure(form, condition, false, words, |plan| {
            let args = Args(Self::channel(&self.one, form, 0), plan);
            self.end(&self.ours.phases, ONE, args)
        })?;
        let posts = &times[..count * POSTS as usize];
        let phase = |phase| posts.iter().skip(phase).step_by(count).copied().collect();
        Ok((0..count).map(phase).collect())
    }

    /// Runs a kernel that fills so many words of times, and converts them.
    fn measure(
        &self,
        form: Form,
        condition: Condition,
        answered: bool,
        words: u64,
        run: impl FnOnce(Plan) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        const SUMMARY: u64 = 4;
        self.one.reset(&self.stream)?;
        let plan = Plan {
            answer: self.one.host.at(self.one.answer()),
            times: self.results.at(SUMMARY),
            summary: self.results.at(0),
            posts: POSTS,
            pause_ns: PAUSE_NS,
            loading: (condition == Condition::PingPong).into(),
            answered: answered.into(),
        };
        let seen = match form {
            Form::Proxy => self.one.slots(),
            _ => self.one.doorbell(),
        };
        // Nobody looks at the doorbell where it is not part of what is measured.
        let responder = answered
            .then(|| Responder::start(&self.one.host, seen, self.one.answer()))
            .transpose()?;
        let ran = run(plan);
        responder.map_or(Ok(()), Responder::end)?;
        ran?;
        let results = self.results.read(&self.stream, SUMMARY + words)?;
        let (cycles, nanoseconds, failed) = (results[0], results[1], results[2]);
        ensure!(failed == 0, "a post failed or was not answered");
        ensure!(cycles > 0 && nanoseconds > 0, "the clocks stand still");
        let cycle = nanoseconds as f64 / cycles as f64;
        let times = &results[SUMMARY as usize..];
        Ok(times.iter().map(|time| *time as f64 * cycle).collect())
    }
}

const ONE: LaunchDims = LaunchDims { grid: 1, block: 1 };
