"""The one file that every Python below a supervised command reads before its own code.

Never prints, never raises, imports nothing that is not loaded already, and keeps to syntax
that Python 2.7 and 3 both understand: most interpreters that come by here have nothing to
do with us.

It takes its folder off `sys.path`, makes the SDK importable where it is not installed
(as the very last resort of the import system, so that an installed copy wins), waits for
an agent it knows to be imported, and then runs the `sitecustomize` that it shadows, as if
it had never been there.
"""

# mypy: ignore-errors

import os
import sys

# Modules of agents that are followed unmodified, and the adapter that follows them.
_KNOWN = {
    "run_agent": "hermes",
    "hermes_state": "hermes",
    "hermes_cli.plugins": "hermes",
    # What the model SDKs of Python are built on.
    "httpx": "model_http",
    "httpx2": "model_http",
}
# What a process imports early if it is a Hermes at all, whatever it is asked to do.
_SIGNS = ("hermes_bootstrap", "hermes_cli", "run_agent", "acp_adapter", "tui_gateway")
# In a Hermes, a module of such a name may define one of these classes, wherever it was before.
_PREFIXES = ("agent.", "hermes", "run_agent")
_CLASSES = ("AIAgent", "SessionDB", "PluginManager")


class _ImportHook(object):
    """Loads the adapter when a known agent's module has been loaded. Finds no module itself."""

    in_hermes = False

    def find_spec(self, name, path=None, target=None):
        if name in _SIGNS:
            self.in_hermes = True
            _leave_a_sign()
            _watch_children()
        if name not in _KNOWN and not (self.in_hermes and name.startswith(_PREFIXES)):
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                try:
                    _tell_when_loaded(spec.loader, _KNOWN.get(name))
                except Exception:
                    pass
                return spec
        return None


def _leave_a_sign():
    """For the supervisor, which could not distinguish a Hermes that sent nothing from a Hermes that
    the shim did not get into."""
    try:
        sign = os.path.join(os.environ["HERMES_SUPERVISE_SPOOL"], "reached")
        os.close(os.open(sign, os.O_CREAT | os.O_WRONLY, 0o600))
    except Exception:
        pass


def _watch_children():
    """A Hermes may start another Hermes in a way that loses the shim."""
    try:
        name = "_hermes_supervise.agent_shim.adapters.hermes_children"
        if name not in sys.modules:
            __import__(name)
            sys.modules[name].watch()
    except Exception:
        pass


def _tell_when_loaded(loader, adapter):
    execute = loader.exec_module

    def exec_module(module):
        del loader.exec_module  # back to the class' own
        execute(module)
        try:
            if adapter is None:
                _find_moved(module)
                return
            name = "_hermes_supervise.agent_shim.adapters." + adapter
            __import__(name)
            sys.modules[name].loaded(module)
        except Exception:
            pass

    loader.exec_module = exec_module


def _find_moved(module):
    """A class that we know by its name, in a module that we do not know."""
    for name in _CLASSES:
        found = module.__dict__.get(name)
        if isinstance(found, type) and found.__module__ == module.__name__:
            adapter = "_hermes_supervise.agent_shim.adapters.hermes"
            __import__(adapter)
            sys.modules[adapter].found(module, name, found)


class _LastResort(object):
    """Finds us in the supervisor's own files when nobody else knows `hermes_supervise`.

    The adapters always run from there, under a name of their own: an agent's own copy may
    be of another version.
    """

    def __init__(self, home):
        self.home = home

    def find_spec(self, name, path=None, target=None):
        if name not in ("hermes_supervise", "_hermes_supervise"):
            return None
        spec = type(sys.__spec__)(name, None, is_package=True)
        spec.submodule_search_locations = [self.home]
        return spec


def _put_back():
    """An agent that was to start in isolation must not find what stands in for that
    (ipc/isolation.py), but the variables that it would have found."""
    moved = os.environ.pop("HERMES_SUPERVISE_PYTHON", None)
    if moved is None:
        return
    for name in ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONNOUSERSITE"):
        os.environ.pop(name, None)
    for variable in moved.split("\x1f"):
        name, _, value = variable.partition("=")
        if name:
            os.environ[name] = value.replace("%1F", "\x1f").replace("%25", "%")


def _step_aside():
    here = __file__.replace("\\", "/").rpartition("/")[0]
    sys.path[:] = [entry for entry in sys.path if entry.rstrip("/\\") != here]
    if sys.version_info >= (3, 8):
        sys.meta_path.append(_LastResort(here.rpartition("/")[0].rpartition("/")[0]))
        if os.environ.get("HERMES_SUPERVISE_SOCKET") and os.environ.get("HERMES_SUPERVISE") != "0":
            sys.meta_path.insert(0, _ImportHook())


def _run_the_shadowed_one():
    """Where there is none, the import fails as without us, and `site` does not mind: nothing
    by the name of `sitecustomize` stays behind that would not be there otherwise."""
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    finally:
        # The import under way wants to find the name it began with.
        sys.modules.setdefault("sitecustomize", ours)


try:
    _put_back()
    _step_aside()
except Exception:
    pass
_run_the_shadowed_one()
