//! Stacks of libraries and kernels to test on: softnic, or guests with a kernel and an rdma-core.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;
use soft_roce::{RdmaCore, Run, Source, kernel, rdma_core};

use crate::workspace::Workspace;

/// The stack of a run, as on the command line. The default is the kernel of the backend and the installed rdma-core.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Stack to test on: `softnic`, or a kernel and a release of rdma-core, such as 6.12/44 or newest/newest
    #[arg(id = "stack", long = "stack", value_name = "NAME", conflicts_with_all = ["kernel", "rdma_core"])]
    pub(crate) name: Option<String>,
    /// Kernel of the guests: a series such as 6.12, `newest`, or an image with --modules
    #[arg(long, value_name = "KERNEL")]
    pub(crate) kernel: Option<PathBuf>,
    /// Folder with the modules of a kernel image
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub(crate) modules: Option<PathBuf>,
    /// rdma-core to build and run with, instead of the installed one: `newest`, or the folder of a build
    #[arg(long, value_name = "DIR")]
    pub(crate) rdma_core: Option<PathBuf>,
}

/// A stack.
#[derive(Clone, Debug)]
pub(crate) enum Stack {
    /// softnic, without kernel and rdma-core.
    Softnic,
    /// Guests.
    Guests {
        kernel: Source,
        /// `None`: the installed one.
        rdma_core: Option<RdmaCore>,
    },
}

impl Default for Stack {
    fn default() -> Self {
        Self::Guests {
            kernel: Source::Distribution,
            rdma_core: None,
        }
    }
}

impl Stack {
    /// Whether neither a kernel nor an rdma-core has been chosen.
    pub(crate) fn is_default(&self) -> bool {
        matches!(
            self,
            Self::Guests {
                kernel: Source::Distribution,
                rdma_core: None,
            }
        )
    }

    /// Release of the rdma-core, the part before the dot.
    ///
    /// # Errors
    ///
    /// No rdma-core is installed.
    pub(crate) fn rdma_core_release(&self) -> Result<String> {
        let installed;
        let rdma_core = match self {
            Self::Guests {
                rdma_core: Some(rdma_core),
                ..
            } => rdma_core,
            _ => {
                installed = RdmaCore::find(Path::new("/"))?;
                &installed
            }
        };
        Ok(major(rdma_core).to_owned())
    }

    /// The workspace, built with the stack's rdma-core.
    ///
    /// # Errors
    ///
    /// Cargo cannot describe the workspace.
    pub(crate) fn workspace(&self) -> Result<Workspace> {
        let workspace = Workspace::load()?;
        Ok(match self {
            Self::Guests {
                rdma_core: Some(rdma_core),
                ..
            } => workspace.with_rdma_core(rdma_core),
            _ => workspace,
        })
    }

    /// The plan of guests with this stack.
    pub(crate) fn choose_for(&self, plan: Run) -> Run {
        match self {
            Self::Guests { kernel, rdma_core } => {
                plan.kernel(kernel.clone()).rdma_core(rdma_core.clone())
            }
            Self::Softnic => plan,
        }
    }

    /// Sets the variables by which guests started by `command` get this stack.
    pub(crate) fn choose_for_guests(&self, command: &mut Command) {
        let Self::Guests { kernel, rdma_core } = self else {
            return;
        };
        match kernel {
            Source::Distribution => {}
            Source::Named(name) => {
                command.env(kernel::VARIABLE, name.to_string());
            }
            Source::Files { image, modules } => {
                command.env(kernel::VARIABLE, image);
                command.env(kernel::MODULES_VARIABLE, modules);
            }
        }
        if let Some(rdma_core) = rdma_core {
            command.env(rdma_core::VARIABLE, rdma_core.prefix());
        }
    }
}

impl Choice {
    /// The chosen stack; builds its rdma-core if necessary.
    ///
    /// # Errors
    ///
    /// The name is no stack, or the rdma-core is absent or cannot be built.
    pub(crate) fn resolve(&self) -> Result<Stack> {
        let Some(name) = &self.name else {
            return Ok(Stack::Guests {
                kernel: Source::chosen(self.kernel.as_deref(), self.modules.as_deref())?,
                rdma_core: self.rdma_core.as_deref().map(RdmaCore::find).transpose()?,
            });
        };
        if name == "softnic" {
            return Ok(Stack::Softnic);
        }
        let (kernel, rdma_core) = split(name)?;
        let installed = RdmaCore::find(Path::new("/")).ok();
        let is_installed = installed
            .as_ref()
            .is_some_and(|found| major(found) == rdma_core);
        Ok(Stack::Guests {
            kernel: Source::chosen(Some(Path::new(kernel)), None)?,
            rdma_core: match is_installed {
                true => None,
                false => Some(newest(rdma_core, installed.as_ref())?),
            },
        })
    }
}

/// Kernel and release of rdma-core in the name of a stack.
fn split(name: &str) -> Result<(&str, &str)> {
    let parts = name.split_once('/');
    let is_release =
        |text: &str| text == "newest" || text.parse::<u32>().is_ok_and(|release| release > 0);
    let parts = parts.filter(|(kernel, rdma_core)| !kernel.is_empty() && is_release(rdma_core));
    parts.ok_or_else(|| {
        anyhow::anyhow!(
            "`{name}` is no stack: give `softnic`, or a kernel and a release of rdma-core, such as 6.12/44 or \
             newest/newest"
        )
    })
}

/// The release without the part after the dot: 65 for `65.0`.
fn major(rdma_core: &RdmaCore) -> &str {
    rdma_core.release().split('.').next().unwrap_or_default()
}

/// The newest rdma-core, if of the release `requested`.
fn newest(requested: &str, installed: Option<&RdmaCore>) -> Result<RdmaCore> {
    let newest = RdmaCore::find(Path::new("newest"))?;
    ensure!(
        requested == "newest" || major(&newest) == requested,
        "rdma-core {requested} is neither installed ({}) nor the newest ({}): give a build's folder with --rdma-core",
        installed.map_or("none", RdmaCore::release),
        newest.release()
    );
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_is_softnic_or_a_kernel_and_a_release() {
        assert_eq!(split("6.12/44").unwrap(), ("6.12", "44"));
        assert_eq!(split("newest/newest").unwrap(), ("newest", "newest"));
        for wrong in [
            "6.12",
            "/44",
            "6.12/",
            "6.12/x",
            "44/6.12",
            "6.12/44.0",
            "qemu",
        ] {
            let error = split(wrong).unwrap_err().to_string();
            assert!(error.contains("6.12/44"), "{error}");
        }
        let name = Some("softnic".to_owned());
        let choice = Choice {
            name,
            ..Choice::default()
        };
        assert!(matches!(choice.resolve().unwrap(), Stack::Softnic));
    }

    #[test]
    fn choice_without_a_name_is_the_default_stack() {
        let stack = Choice::default().resolve().unwrap();
        assert!(matches!(
            stack,
            Stack::Guests {
                kernel: Source::Distribution,
                rdma_core: None
            }
        ));
    }
}
