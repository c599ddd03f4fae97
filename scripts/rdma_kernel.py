"""Makes what the RDMA guest needs: a User-Mode Linux kernel with Soft-RoCE, and some packages.

    python scripts/rdma_kernel.py    # ahead of time; the guest makes it itself when it is missing

Debian's User-Mode Linux has no InfiniBand, so its core, its verbs and Soft-RoCE are compiled as
modules from the source package of the same version. Nothing is installed: packages are unpacked in
the cache, those that only compiling needs are thrown away. Compiling needs gcc and make.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rdma_host import BrokenError, UnavailableError, check_machine

CACHE = Path(
    os.environ.get("TENSORCAST_RDMA_GUEST")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tensorcast/rdma-guest")
)
LAYER = ("python3-pyverbs", "libibverbs1", "librdmacm1", "ibverbs-providers")
LAYER += ("libnl-3-200", "libnl-route-3-200")
"""What the guest has and the host may lack: pyverbs, and the libraries that it is linked to."""

TOOLS = {"rdma": ("iproute2", "libbpf1", "libelf1", "libmnl0", "libcap2", "libtirpc3")}
"""Programs of the guest, with the packages that bring them where the host has none."""

BUILD_TOOLS = {
    "flex": ("flex",),
    "bison": ("bison",),
    "m4": ("m4",),
    "bc": ("bc",),
    "xz": ("xz-utils",),
}

MODULES = ("ipv6", "overlay", "veth", "crc32_generic", "udp_tunnel", "ip6_udp_tunnel")
OUR_MODULES = ("rdma_stand_ins", "ib_core", "ib_uverbs", "rdma_rxe")
"""What the guest loads: of the kernel's package, with what these depend on; then what is compiled
here, in this order (compiled one by one, they do not say what they depend on)."""

SETTINGS = {
    "CONFIG_INFINIBAND": "m",
    "CONFIG_INFINIBAND_USER_ACCESS": "m",
    "CONFIG_INFINIBAND_USER_MEM": "y",
    "CONFIG_INFINIBAND_VIRT_DMA": "y",
    "CONFIG_RDMA_RXE": "m",
}
"""Set on make's command line: the kernel's own configuration does not offer them without PCI."""

FOLDERS = (
    "include",
    "arch/um",
    "arch/x86",
    "scripts",
    "kernel",
    "init",
    "drivers/infiniband/core",
    "drivers/infiniband/sw/rxe",
    "security",
    "certs",
    "usr",
)
SOURCES = ("*/Kconfig*", "*/Makefile*", "*/Kbuild*", *(f"linux-source-*/{one}" for one in FOLDERS))
"""The parts of the kernel's source that compiling the modules reads."""

STAND_INS = r"""
#include <linux/module.h>
#include <linux/irq_poll.h>
#include <linux/dim.h>
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
/* What the InfiniBand core is linked to and this kernel lacks; verbs over Soft-RoCE use none. */
#define ABSENT ERR_PTR(-EOPNOTSUPP)
void irq_poll_init(struct irq_poll *p, int w, irq_poll_fn *f) { WARN_ONCE(1, "no irq_poll"); }
void irq_poll_sched(struct irq_poll *p) { }
void irq_poll_complete(struct irq_poll *p) { }
void irq_poll_disable(struct irq_poll *p) { }
void irq_poll_enable(struct irq_poll *p) { }
void rdma_dim(struct dim *d, u64 n) { }
struct dma_buf *dma_buf_get(int fd) { return ABSENT; }
void dma_buf_put(struct dma_buf *b) { }
struct dma_buf_attachment *dma_buf_dynamic_attach(struct dma_buf *b, struct device *d,
	const struct dma_buf_attach_ops *o, void *p) { return ABSENT; }
void dma_buf_detach(struct dma_buf *b, struct dma_buf_attachment *a) { }
int dma_buf_pin(struct dma_buf_attachment *a) { return -EOPNOTSUPP; }
void dma_buf_unpin(struct dma_buf_attachment *a) { }
struct sg_table *dma_buf_map_attachment(struct dma_buf_attachment *a,
	enum dma_data_direction d) { return ABSENT; }
void dma_buf_unmap_attachment(struct dma_buf_attachment *a, struct sg_table *t,
	enum dma_data_direction d) { }
long dma_resv_wait_timeout(struct dma_resv *r, enum dma_resv_usage u, bool i,
	unsigned long t) { return 0; }
EXPORT_SYMBOL(irq_poll_init); EXPORT_SYMBOL(irq_poll_sched); EXPORT_SYMBOL(irq_poll_complete);
EXPORT_SYMBOL(irq_poll_disable); EXPORT_SYMBOL(irq_poll_enable); EXPORT_SYMBOL(rdma_dim);
EXPORT_SYMBOL(dma_buf_get); EXPORT_SYMBOL(dma_buf_put); EXPORT_SYMBOL(dma_buf_dynamic_attach);
EXPORT_SYMBOL(dma_buf_detach); EXPORT_SYMBOL(dma_buf_pin); EXPORT_SYMBOL(dma_buf_unpin);
EXPORT_SYMBOL(dma_buf_map_attachment); EXPORT_SYMBOL(dma_buf_unmap_attachment);
EXPORT_SYMBOL(dma_resv_wait_timeout);
MODULE_LICENSE("GPL");
"""

WIDE_REGISTERS = r"""
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
/* This kernel keeps 2696 bytes of a process's registers; processors with AMX have 11008, and
   Linux takes all of them or none. It is given those that fit; the others are put back as at the
   start of a process, for nothing in the guest gets leave to use them. */
enum { HEADER = 512, COMPONENTS = 63 };
static char wide[1 << 16] __attribute__((aligned(64)));
static size_t width;
static long (*next)(int, long, void *, void *);
static uint64_t fitting(size_t size) {
	static size_t of;
	static uint64_t known;
	if (of == size) return known; /* to ask a virtual processor takes long */
	of = size, known = ~0ULL;
	for (unsigned i = 2; i < COMPONENTS; i++) {
		unsigned length, offset, c, d;
		__cpuid_count(0xd, i, length, offset, c, d);
		if (length && (size_t)offset + length > size) known &= ~(1ULL << i);
	}
	return known;
}
static void forget(char *registers, size_t size) {
	uint64_t used;
	memcpy(&used, registers + HEADER, sizeof used);
	used &= fitting(size);
	memcpy(registers + HEADER, &used, sizeof used);
}
static long get(long process, struct iovec *wanted) {
	struct iovec all = {wide, sizeof wide};
	long failed = next(PTRACE_GETREGSET, process, (void *)NT_X86_XSTATE, &all);
	if (failed) return failed;
	width = all.iov_len;
	if (wanted->iov_len > width) wanted->iov_len = width;
	if (wanted->iov_len >= HEADER + 64 && wanted->iov_len < width)
		forget(wide, wanted->iov_len);
	memcpy(wanted->iov_base, wide, wanted->iov_len);
	return 0;
}
static long set(long process, struct iovec *given) {
	char none[1];
	struct iovec nothing = {none, 0}, all = {wide, 0};
	if (!width && get(process, &nothing)) return -1;
	if (given->iov_len < HEADER + 64 || given->iov_len >= width)
		return next(PTRACE_SETREGSET, process, (void *)NT_X86_XSTATE, given);
	memcpy(wide, given->iov_base, given->iov_len);
	memset(wide + given->iov_len, 0, width - given->iov_len);
	forget(wide, given->iov_len);
	all.iov_len = width;
	return next(PTRACE_SETREGSET, process, (void *)NT_X86_XSTATE, &all);
}
long ptrace(enum __ptrace_request request, ...) {
	va_list rest;
	va_start(rest, request);
	long process = va_arg(rest, int);
	void *address = va_arg(rest, void *), *data = va_arg(rest, void *);
	va_end(rest);
	if (!next) next = (long (*)(int, long, void *, void *))dlsym(RTLD_NEXT, "ptrace");
	if (address == (void *)NT_X86_XSTATE && request == PTRACE_GETREGSET)
		return get(process, data);
	if (address == (void *)NT_X86_XSTATE && request == PTRACE_SETREGSET)
		return set(process, data);
	return next(request, process, address, data);
}
"""
"""Loaded before the C library of the kernel's process, for processors that came after it."""


SEAL = "complete.json"
"""Written last, with the digests of everything else: what is damaged later is made again."""


def say(text: str) -> None:
    """Tells a person what takes so long."""
    print(f"rdma: {text}", file=sys.stderr, flush=True)


def recipe() -> str:
    """Names what is made here: another recipe makes another guest."""
    parts = (LAYER, TOOLS, MODULES, OUR_MODULES, SETTINGS, SOURCES, STAND_INS, WIDE_REGISTERS, SEAL)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def prepare() -> Path:
    """The folder with kernel, modules and packages, made when it is not there or damaged: half a
    minute of two cores, 185 MB from the archive. Raises UnavailableError, BrokenError, OSError."""
    made = CACHE / recipe()
    if is_whole(made):
        return made
    if not (made / SEAL).exists():
        return make_in_cache(made)
    say(f"something in {made} is damaged: it is made again")
    try:
        return make_in_cache(made)
    except UnavailableError as error:
        raise BrokenError(f"{made} is damaged, and cannot be made again: {error}") from error


def make_in_cache(made: Path) -> Path:
    """Makes the folder `made`, in place of what may be there. Raises as `prepare`."""
    check_host()
    CACHE.mkdir(parents=True, exist_ok=True)
    say("making the guest's kernel, once (185 MB from the package archive, about a minute)")
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="making-") as name:
        fresh = Path(name) / "made"
        make(Path(name), fresh)
        seal(fresh)
        if made.exists() and not is_whole(made):
            made.rename(Path(name) / "damaged")
        with contextlib.suppress(OSError):  # somebody else was faster
            fresh.rename(made)
    return made


def digests(made: Path) -> dict[str, str]:
    """Of every file in the folder."""
    found = (path for path in sorted(made.rglob("*")) if path.is_file() and path.name != SEAL)
    return {
        str(path.relative_to(made)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
        if not path.is_symlink()  # it may lead out of the folder
    }


def seal(made: Path) -> None:
    """From now on it is used."""
    (made / SEAL).write_text(json.dumps(digests(made)))


def is_whole(made: Path) -> bool:
    """Whether it was finished, and is as it was then."""
    try:
        return bool(json.loads((made / SEAL).read_text()) == digests(made))
    except (OSError, ValueError):
        return False


def check_host() -> None:
    """Raises UnavailableError where the guest cannot be made."""
    check_machine()
    for tool in ("apt-get", "apt-cache", "dpkg-deb", "gcc", "make", "strip", "setsid"):
        if not shutil.which(tool):
            raise UnavailableError(f"this machine has no {tool} to make the guest with")


def make(work: Path, made: Path) -> None:
    """Fetches, compiles and lays out everything in `made`."""
    refresh_lists()
    packages = work / "packages"
    fetch(packages, {"user-mode-linux": None})
    uml = work / "uml"
    unpack(packages, ("user-mode-linux",), uml)
    release = next((uml / "usr/lib/uml/modules").iterdir()).name
    source = f"linux-source-{'.'.join(release.split('.')[:2])}"
    runtime = (*LAYER, *missing(TOOLS))
    compiling = missing(BUILD_TOOLS)
    wanted: dict[str, str | None] = dict.fromkeys((*runtime, *compiling))
    fetch(packages, {**wanted, source: source_version(source, release)})
    unpack(packages, runtime, made / "layer")
    merge_usr(made / "layer")
    unpack(packages, compiling, work / "tools")
    built = compile_modules(work, uml, packages, source)
    lay_out(built, uml, release, made)
    compile_wide_registers(work, made)


def refresh_lists() -> None:
    """A new machine knows no packages before it has asked."""
    known = run(["apt-cache", "madison", "user-mode-linux"])
    if not known.strip() and os.geteuid() == 0:
        say("apt-get update")
        subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=sys.stderr)
        known = run(["apt-cache", "madison", "user-mode-linux"])
    if not known.strip():
        raise UnavailableError("the package archive has no user-mode-linux")


def source_version(package: str, release: str) -> str:
    """The source package of the very release that User-Mode Linux was compiled from."""
    rows = run(["apt-cache", "madison", package]).splitlines()
    versions = [row.split("|")[1].strip() for row in rows if "|" in row]
    exact = [version for version in versions if version.split("-")[0] == release]
    if not exact:
        raise UnavailableError(f"the package archive has no {package} of version {release}")
    return exact[0]


def missing(tools: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The packages of the programs that this machine lacks."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    lacking = (names for tool, names in tools.items() if not shutil.which(tool, path=path))
    return tuple(name for names in lacking for name in names)


def fetch(folder: Path, packages: Mapping[str, str | None]) -> None:
    """Downloads packages, of these versions where one is given. Raises UnavailableError."""
    folder.mkdir(exist_ok=True)
    wanted = [f"{name}={version}" if version else name for name, version in packages.items()]
    done = subprocess.run(
        ["apt-get", "download", "-qq", *wanted], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise UnavailableError(f"packages cannot be had here: {last_line(done.stderr)}")


def unpack(folder: Path, packages: Iterable[str], target: Path) -> None:
    """Unpacks downloaded packages over each other."""
    target.mkdir(parents=True, exist_ok=True)
    for name in packages:
        run(["dpkg-deb", "-x", str(package_file(folder, name)), str(target)])


def package_file(folder: Path, name: str) -> Path:
    """The file that `fetch` left."""
    return next(folder.glob(f"{name}_*.deb"))


def merge_usr(layer: Path) -> None:
    """`/lib` and the like are links into `/usr` on the host: a folder of that name would hide
    them."""
    for name in ("bin", "sbin", "lib"):
        if (layer / name).is_dir():
            shutil.copytree(layer / name, layer / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(layer / name)


def compile_modules(work: Path, uml: Path, packages: Path, package: str) -> list[Path]:
    """The modules of InfiniBand, for the kernel that is there. Raises BrokenError."""
    tree, stand_ins = work / "tree", work / "stand-ins"
    unpack_source(package_file(packages, package), tree)
    stand_ins.mkdir()
    (stand_ins / "rdma_stand_ins.c").write_text(STAND_INS)
    (stand_ins / "Kbuild").write_text("obj-m += rdma_stand_ins.o\n")
    core = tree / "drivers/infiniband/core/Makefile"
    core.write_text(core.read_text().replace("ib_core.o ib_cm.o iw_cm.o", "ib_core.o"))
    configure(tree, uml / "usr/share/doc/user-mode-linux/config.gz")
    defines = " ".join(
        f"-D{name}{'_MODULE' if value == 'm' else ''}=1" for name, value in SETTINGS.items()
    )
    ours = [f"KCFLAGS=-O2 {defines}", *(f"{name}={value}" for name, value in SETTINGS.items())]
    for step in (
        ["olddefconfig"],
        ["modules_prepare"],
        [f"M={stand_ins}", "modules"],
        ["M=drivers/infiniband/core", *ours, "modules"],
        ["M=drivers/infiniband/sw/rxe", *ours, "modules"],
    ):
        compile_step(tree, work / "tools", step)
    return [*stand_ins.glob("*.ko"), *(tree / "drivers/infiniband").rglob("*.ko")]


def unpack_source(package: Path, tree: Path) -> None:
    """The parts of the kernel's source that are needed."""
    tree.mkdir()
    run(
        [
            "bash",
            "-c",
            f"set -o pipefail; dpkg-deb --fsys-tarfile {shlex.quote(str(package))}"
            " | tar -xO --wildcards '*/linux-source-*.tar.xz' | xz -dc -T0"
            f" | tar -x -C {shlex.quote(str(tree))} --strip-components=1 --wildcards "
            + " ".join(shlex.quote(pattern) for pattern in SOURCES),
        ]
    )


def configure(tree: Path, packed: Path) -> None:
    """The configuration of the kernel, without debug information: it takes half of the time."""
    lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    kept = [line for line in lines if "CONFIG_DEBUG_INFO" not in line]
    (tree / ".config").write_text("\n".join([*kept, "CONFIG_DEBUG_INFO_NONE=y", ""]))


def compile_step(tree: Path, tools: Path, step: list[str]) -> None:
    """One call of make. Raises BrokenError with its last lines."""
    environ = {
        **os.environ,
        "PATH": f"{tools}/usr/bin:{os.environ['PATH']}",
        "M4": shutil.which("m4") or f"{tools}/usr/bin/m4",
    }
    if (tools / "usr/share/bison").exists():
        environ["BISON_PKGDATADIR"] = f"{tools}/usr/share/bison"
    command = ["make", "-C", str(tree), "ARCH=um", f"-j{os.cpu_count() or 1}"]
    command += ["KBUILD_MODPOST_WARN=1", *step]
    run(command, environ)


def lay_out(built: Iterable[Path], uml: Path, release: str, made: Path) -> None:
    """Kernel and modules as the guest finds them: the modules by number, in the order in which
    they are loaded."""
    files = {p.stem.replace("-", "_"): p for p in (uml / "usr/lib/uml/modules").rglob("*.ko")}
    files |= {path.stem.replace("-", "_"): path for path in built}
    (made / "modules").mkdir(parents=True)
    for number, name in enumerate(in_order(files)):
        target = made / "modules" / f"{number:02}-{name}.ko"
        run(["strip", "--strip-debug", "-o", str(target), str(files[name])])
    run(["strip", "-o", str(made / "linux"), str(uml / "usr/bin/linux.uml")])
    (made / "release").write_text(release)


def compile_wide_registers(work: Path, made: Path) -> None:
    """The library `registers.so`. Raises BrokenError."""
    source = work / "registers.c"
    source.write_text(WIDE_REGISTERS)
    run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(made / "registers.so"), str(source), "-ldl"])


def in_order(files: Mapping[str, Path]) -> Iterator[str]:
    """The modules that the guest loads, each after those that it depends on."""
    seen: set[str] = set()

    def visit(name: str) -> Iterator[str]:
        if name in seen:
            return
        seen.add(name)
        for other in depends_of(files[name]):
            yield from visit(other)
        yield name

    for name in (*MODULES, *OUR_MODULES):
        yield from visit(name)


def depends_of(module: Path) -> list[str]:
    """The modules that a module says it needs, in its section `.modinfo`."""
    found = re.search(rb"\0depends=([^\0]*)\0", module.read_bytes())
    names = found.group(1).decode().split(",") if found else []
    return [name.replace("-", "_") for name in names if name]


def run(command: list[str], environ: Mapping[str, str] | None = None) -> str:
    """The output of a command. Raises BrokenError with the end of it when it fails."""
    done = subprocess.run(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise BrokenError(f"{' '.join(command[:4])} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def last_line(text: str) -> str:
    """What a program said last."""
    return (text.strip().splitlines() or ["it did not say why"])[-1]


if __name__ == "__main__":
    try:
        prepare()
    except (UnavailableError, BrokenError, OSError) as failure:
        sys.exit(f"rdma: {failure}")
