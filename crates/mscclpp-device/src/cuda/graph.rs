// SPDX-License-Identifier: MIT
//! Work of a stream that is recorded once and launched many times.

use std::fmt;

use cudarc::driver::sys::{self, CUgraphExec};

use super::error::warn;
use super::{CudaError, Gpu, Stream};

/// Work that was put on a stream while it was captured, ready to be launched. Launches of one graph
/// do not overlap. It keeps a value of the caller's: what the work uses.
pub struct Graph<K> {
    gpu: Gpu,
    exec: CUgraphExec,
    kept: K,
}

// SAFETY: the driver's graphs may be used by any thread, if not by two at once: launching needs
// `&mut`.
unsafe impl<K: Send> Send for Graph<K> {}
// SAFETY: as above.
unsafe impl<K: Sync> Sync for Graph<K> {}

impl<K> Graph<K> {
    /// Records what `work` puts on `stream`; none of it runs. What `work` returns is kept as long
    /// as the graph: the kernels that it enqueued, for example.
    ///
    /// # Errors
    ///
    /// Those of `work`, and what the driver says.
    pub fn capture(
        stream: &Stream,
        work: impl FnOnce() -> Result<K, CudaError>,
    ) -> Result<Self, CudaError> {
        let gpu = stream.gpu();
        let _entered = gpu.enter()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a live stream.
        gpu.check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(stream.raw(), mode)
        })?;
        let kept = work();
        let mut graph = std::ptr::null_mut();
        // SAFETY: a stream that is being captured, a valid place to write to.
        let ended = gpu.check("cuStreamEndCapture", unsafe {
            sys::cuStreamEndCapture(stream.raw(), &mut graph)
        });
        let kept = kept?;
        ended?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: a captured graph, a valid place to write to.
        let made = gpu.check("cuGraphInstantiate", unsafe {
            sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0)
        });
        // SAFETY: a graph of ours; what was made of it stands by itself.
        warn(gpu.check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) }));
        made?;
        let graph = Self { gpu, exec, kept };
        // Now, and not at the first launch, perhaps beside a kernel that spins.
        // SAFETY: a live graph and stream.
        gpu.check("cuGraphUpload", unsafe {
            sys::cuGraphUpload(graph.exec, stream.raw())
        })?;
        Ok(graph)
    }

    /// Launches the work behind what is on `stream`, a stream of the same GPU. The graph and what it
    /// keeps must not be dropped before it has run.
    ///
    /// # Errors
    ///
    /// What the driver says: also why earlier work of the GPU failed.
    pub fn launch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        // SAFETY: a live graph and stream; who recorded the work promised that it is sound.
        self.gpu.check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(self.exec, stream.raw())
        })
    }

    /// What the work uses.
    pub fn kept(&self) -> &K {
        &self.kept
    }
}

impl<K> Drop for Graph<K> {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: not used again.
        warn(self.gpu.check("cuGraphExecDestroy", unsafe {
            sys::cuGraphExecDestroy(self.exec)
        }));
    }
}

impl<K> fmt::Debug for Graph<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:?})", self.gpu)
    }
}
