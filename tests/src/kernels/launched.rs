// SPDX-License-Identifier: MIT
//! A launch, and what it holds.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use anyhow::bail;
use mscclpp_bootstrap::Deadline;
use mscclpp_device::executor::LaunchDims;
use mscclpp_port::{BasePortChannel, Device, PortChannel};

use super::kernel::{Kernel, Running};
use super::report::Report;
use crate::harness::Stuck;

/// What a kernel uses, and must outlive it.
pub(super) struct Kept {
    pub(super) report: Option<Report>,
    /// Their connections' errors tell why calls of the kernel failed.
    pub(super) channels: Vec<BasePortChannel>,
    pub(super) _rest: Box<dyn Any + Send>,
}

impl Kept {
    /// The channels and whatever else.
    pub(super) fn new<'a>(
        channels: impl IntoIterator<Item = &'a PortChannel>,
        rest: impl Any + Send,
    ) -> Self {
        Self {
            report: None,
            channels: channels
                .into_iter()
                .map(|channel| channel.base().clone())
                .collect(),
            _rest: Box::new(rest),
        }
    }

    /// What the kernel reports, once it has ended, with what the host knows.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match self.report.as_ref().map_or(Ok(()), Report::check) {
            Ok(()) => Ok(()),
            Err(error) => bail!("{error}{}", self.causes()),
        }
    }

    /// What the host knows of the channels' connections.
    fn causes(&self) -> String {
        let errors = (self.channels.iter()).filter_map(|channel| channel.connection().status());
        errors
            .map(|error| format!("; on the host: {error}"))
            .collect()
    }

    /// With a report that is checked at the end.
    pub(super) fn report(self, report: &Report) -> Self {
        Self {
            report: Some(report.clone()),
            ..self
        }
    }
}

/// A launched kernel, with all that it uses.
pub struct Launched {
    running: Running,
    started: Instant,
    kept: ManuallyDrop<Kept>,
}

impl Launched {
    /// Starts a kernel on a device.
    pub(super) fn start<T: Copy + Send + 'static>(
        kernel: &'static Kernel,
        device: Device,
        dims: LaunchDims,
        args: T,
        kept: Kept,
    ) -> anyhow::Result<Self> {
        let (started, running) = kernel.launch(device, dims, args)?;
        Ok(Self {
            running,
            started,
            kept: ManuallyDrop::new(kept),
        })
    }

    /// Waits until the kernel has ended, and returns the time since its launch.
    ///
    /// # Errors
    /// What the kernel reports. [`Stuck`] if it still runs at the deadline, which ends the run.
    pub fn finish(self, deadline: Deadline) -> anyhow::Result<Duration> {
        if let Err(error) = self.running.join(deadline.remaining()) {
            let stuck = Stuck(format!("{error}{}", self.kept.causes()));
            // It has been waited for, and goes on using what would be dropped.
            std::mem::forget(self);
            return Err(stuck.into());
        }
        let took = self.started.elapsed();
        self.kept.check()?;
        Ok(took)
    }

    /// Whether all threads of the kernel have returned.
    pub fn is_finished(&self) -> bool {
        self.running.is_finished()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // One that still runs goes on using all of it, so that is never freed then. Most end soon,
        // and peers are told sooner of what is dropped here.
        if self.running.join(LAST_WAIT).is_ok() {
            // SAFETY: this is the only place that drops it, and a drop happens once.
            unsafe { ManuallyDrop::drop(&mut self.kept) };
        }
    }
}

/// How long a kernel that nobody waited for may take to end.
const LAST_WAIT: Duration = Duration::from_secs(5);
