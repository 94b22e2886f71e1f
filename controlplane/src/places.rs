//! Where containers can be reached now: each that is driven, with the session
//! of its worker, by its id, its task, its slug and its name. A drive enters
//! its container and takes it out again; whoever reaches in looks here and
//! never in the database first. It decides nothing about who may.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use levers9_transport::accept::SessionHandle;
use levers9_wire::{ContainerId, Generation, TaskId, WorkspaceId};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::store::{Exposed, Fence, TaskNow};

/// What is known of a container besides where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Whose it is.
    pub workspace: WorkspaceId,
    /// What people call its task; may be empty.
    pub name: String,
    /// What HTTP requests may reach.
    pub exposed: Option<Exposed>,
}

impl From<&TaskNow> for About {
    fn from(now: &TaskNow) -> Self {
        let task = &now.task;
        Self { workspace: task.workspace, name: task.name.clone(), exposed: task.exposed.clone() }
    }
}

/// A container that a worker with a session has.
#[derive(Debug)]
pub struct Place {
    /// Which attempt of which task, in which container.
    pub fence: Fence,
    /// What is known of it.
    pub about: About,
    /// The way to its worker.
    pub session: SessionHandle,
    number: u64,
}

impl Place {
    /// The container.
    #[must_use]
    pub fn container(&self) -> ContainerId {
        self.fence.container
    }

    /// Which incarnation of it.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.fence.generation
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// How many were entered.
    numbers: u64,
    containers: HashMap<ContainerId, Arc<Place>>,
    tasks: HashMap<TaskId, ContainerId>,
    slugs: HashMap<String, ContainerId>,
    /// Those of one name, oldest first.
    names: HashMap<(WorkspaceId, String), Vec<ContainerId>>,
}

/// Who may wait for a container at once.
const WAITING: usize = 1024;

/// Every container that can be reached.
#[derive(Debug)]
pub struct Places {
    inner: Mutex<Inner>,
    /// Rung when one is entered.
    entered: watch::Sender<()>,
    waiting: Semaphore,
}

impl Default for Places {
    fn default() -> Self {
        Self { inner: Mutex::default(), entered: watch::Sender::default(), waiting: Semaphore::new(WAITING) }
    }
}

impl Places {
    /// To be told when a container is entered.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<()> {
        self.entered.subscribe()
    }

    /// Leave to wait for one; `None` while too many wait.
    #[must_use]
    pub fn wait(&self) -> Option<SemaphorePermit<'_>> {
        self.waiting.try_acquire().ok()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a container in, in the place of an earlier way to it. The number
    /// it gives takes it out again.
    pub fn enter(&self, fence: Fence, about: About, session: SessionHandle) -> u64 {
        let container = fence.container;
        let mut inner = self.lock();
        let number = inner.numbers;
        inner.numbers += 1;
        inner.remove(container);
        inner.tasks.insert(fence.task, container);
        if let Some(exposed) = &about.exposed {
            inner.slugs.insert(exposed.slug.clone(), container);
            if !about.name.is_empty() {
                inner.names.entry((about.workspace, about.name.clone())).or_default().push(container);
            }
        }
        inner.containers.insert(container, Arc::new(Place { fence, about, session, number }));
        drop(inner);
        self.entered.send_replace(());
        number
    }

    /// Takes a container out, unless it was entered again since.
    pub fn leave(&self, container: ContainerId, number: u64) {
        let mut inner = self.lock();
        if inner.containers.get(&container).is_some_and(|place| place.number == number) {
            inner.remove(container);
        }
    }

    /// By its id.
    #[must_use]
    pub fn container(&self, container: ContainerId) -> Option<Arc<Place>> {
        self.lock().containers.get(&container).cloned()
    }

    /// Where a task runs.
    #[must_use]
    pub fn task(&self, task: TaskId) -> Option<Arc<Place>> {
        let inner = self.lock();
        inner.containers.get(inner.tasks.get(&task)?).cloned()
    }

    /// By the slug of its task.
    #[must_use]
    pub fn slug(&self, slug: &str) -> Option<Arc<Place>> {
        let inner = self.lock();
        inner.containers.get(inner.slugs.get(slug)?).cloned()
    }

    /// The newest of a name in a workspace that HTTP requests may reach.
    #[must_use]
    pub fn name(&self, workspace: WorkspaceId, name: &str) -> Option<Arc<Place>> {
        let inner = self.lock();
        let newest = inner.names.get(&(workspace, name.to_owned()))?.last()?;
        inner.containers.get(newest).cloned()
    }
}

impl Inner {
    fn remove(&mut self, container: ContainerId) {
        let Some(place) = self.containers.remove(&container) else { return };
        if self.tasks.get(&place.fence.task) == Some(&container) {
            self.tasks.remove(&place.fence.task);
        }
        let Some(exposed) = &place.about.exposed else { return };
        self.slugs.remove(&exposed.slug);
        let key = (place.about.workspace, place.about.name.clone());
        if let Some(same) = self.names.get_mut(&key) {
            same.retain(|one| *one != container);
            if same.is_empty() {
                self.names.remove(&key);
            }
        }
    }
}
