"""What makes a host a node on which a supervisor can start: the runtime package, and where it is put."""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.bootstrap import Bootstrap as Bootstrap
    from trainmaster.cluster.bootstrap.bootstrap import BootstrapSettings as BootstrapSettings
    from trainmaster.cluster.bootstrap.cluster_keys import ClusterKeys as ClusterKeys
    from trainmaster.cluster.bootstrap.cluster_keys import KeyPair as KeyPair
    from trainmaster.cluster.bootstrap.cluster_keys import make_key_pair as make_key_pair
    from trainmaster.cluster.bootstrap.facts import HostFacts as HostFacts
    from trainmaster.cluster.bootstrap.host_result import HostOutcome as HostOutcome
    from trainmaster.cluster.bootstrap.host_result import HostResult as HostResult
    from trainmaster.cluster.bootstrap.host_result import Phase as Phase
    from trainmaster.cluster.bootstrap.host_result import PhaseReport as PhaseReport
    from trainmaster.cluster.bootstrap.host_result import usable as usable
    from trainmaster.cluster.bootstrap.removal import remove_runtime as remove_runtime
    from trainmaster.cluster.bootstrap.runtime_package import GPU_ROOTS as GPU_ROOTS
    from trainmaster.cluster.bootstrap.runtime_package import ROOTS as ROOTS
    from trainmaster.cluster.bootstrap.runtime_package import RuntimeLayer as RuntimeLayer
    from trainmaster.cluster.bootstrap.runtime_package import RuntimePackage as RuntimePackage
    from trainmaster.cluster.bootstrap.runtime_package import code_layer as code_layer
    from trainmaster.cluster.bootstrap.runtime_package import make_runtime_package as make_runtime_package
    from trainmaster.cluster.bootstrap.runtime_package import make_runtime_packages as make_runtime_packages
    from trainmaster.cluster.bootstrap.runtime_package_cache import (
        cached_runtime_packages as cached_runtime_packages,
    )

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "bootstrap": "Bootstrap BootstrapSettings",
        "cluster_keys": "ClusterKeys KeyPair make_key_pair",
        "facts": "HostFacts",
        "host_result": "HostOutcome HostResult Phase PhaseReport usable",
        "removal": "remove_runtime",
        "runtime_package": (
            "GPU_ROOTS ROOTS RuntimeLayer RuntimePackage code_layer make_runtime_package "
            "make_runtime_packages"
        ),
        "runtime_package_cache": "cached_runtime_packages",
    },
)
