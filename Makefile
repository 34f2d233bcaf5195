# make demo       install, let the small model that comes with Tandem write and chat
# make test       lint, type check, tests (what CI runs)
# make test-slow  the tests that take minutes
# make soak       an hour of random requests; MINUTES=5 for less
# make lint       lint and type check only
# make bench      speed of the small model
# make cuda       the CUDA library, where its tools are installed: pip install -c ci/constraints.txt '.[cuda-build]'
# make ascend     the Ascend library, where CANN's compiler is installed; make ascend-emulated its emulation, on this host
# make nano       train the small model again, about two hours; resumes where it was stopped
# make clean      remove what was built; .venv stays

INSTALL_INPUTS := pyproject.toml setup.py ci/constraints.txt ci/setup.sh
INSTALLED := .venv/installed
NATIVE := build/native.stamp
TANDEM := .venv/bin/tandem
# The model is too small for a second thread.
export OMP_NUM_THREADS ?= 1
PROMPT ?= In the beginning
QUESTION ?= Who are you?

MINUTES ?= 60

.PHONY: demo test test-slow soak lint bench cuda ascend ascend-emulated nano clean install
.DELETE_ON_ERROR:

demo: install
	@echo "==> the small model continues: $(PROMPT)"
	TANDEM_BACKEND=cpu $(TANDEM) generate "$(PROMPT)" --max-tokens 64 --temperature 0.7
	@echo "==> and answers: $(QUESTION)"
	echo "$(QUESTION)" | TANDEM_BACKEND=cpu $(TANDEM) chat --max-tokens 128 --temperature 0.7

test: lint
	@ci/test.sh

test-slow: install
	@ci/slow.sh

soak: install
	@echo "==> $(MINUTES) minutes of random requests"
	@.venv/bin/python -m tools.soak --minutes $(MINUTES)

lint: install
	@ci/lint.sh
	@ci/typecheck.sh

bench: install
	@echo "==> prefill speed of the small model"
	TANDEM_BACKEND=cpu $(TANDEM) bench prefill
	@echo "==> decode speed of the small model"
	TANDEM_BACKEND=cpu $(TANDEM) bench decode

cuda: install
	@echo "==> compiling the CUDA library"
	@ci/cuda.sh

ascend: install
	@echo "==> compiling the Ascend library"
	@ci/ascend.sh

ascend-emulated: install
	@echo "==> compiling the emulated Ascend library"
	@ci/ascend.sh --emulated

nano: install
	@echo "==> corpus, tokenizer, conversations"
	.venv/bin/python -m tools.train_nano.dataset
	@echo "==> training the backbone (about an hour on one core)"
	.venv/bin/python -m tools.train_nano.train --compile
	@echo "==> letting it write, and training the draft module on that"
	.venv/bin/python -m tools.train_nano.export --no-draft
	.venv/bin/python -m tools.train_nano.continuations
	.venv/bin/python -m tools.train_nano.draft --compile
	.venv/bin/python -m tools.train_nano.export
	@echo "==> the model is in build/nano/model; tools/train_nano/README.md says how to measure it"

install: $(INSTALLED) $(NATIVE)

$(INSTALLED): $(INSTALL_INPUTS)
	@ci/setup.sh
	@mkdir -p build && touch $@ $(NATIVE)

# The installation compiles the kernels; this compiles them again after a change.
$(NATIVE): $(wildcard csrc/cpu/* csrc/cpu/ops/* csrc/include/* csrc/build_cpu.py) | $(INSTALLED)
	@echo "==> compiling the native kernels"
	@.venv/bin/python setup.py --quiet build_native --inplace
	@mkdir -p build && touch $@

clean:
	@echo "==> removing build outputs"
	rm -rf build *.egg-info backends/cpu/libtandem_cpu.*
