#include "device/port.h"
#include <structmember.h>
#include <algorithm>
#include <cstring>

namespace needle {

PyTypeObject *block_type, *launch_type;

namespace {

constexpr int64_t kAlignment = 512;      // as in arena.py
constexpr unsigned kThreads = 256;       // default number of threads of a block
constexpr unsigned kUnasked = 48 << 10;  // bytes of shared memory that any kernel may have
constexpr int kPoll = 32;                // loans between two checks of blocks that wait for events

PyObject* settings;            // the context variable of config.py
thread_local int64_t entered;  // whose device is current in this thread
int64_t switches;              // how often any thread chose a stream
thread_local struct {
  const Port* port;
  int64_t switches, stream;
} chosen;  // this thread's stream, and the number of switches it belongs to

Port* as_port(PyObject* self) { return reinterpret_cast<Port*>(self); }
Block* as_block(PyObject* self) { return reinterpret_cast<Block*>(self); }

// This thread's stream; -1 with an exception.
int64_t current(const Port* port) {
  if (!port->several) return port->main;
  if (chosen.port == port && chosen.switches == switches) return chosen.stream;
  const int64_t now = switches;
  PyObject* stream = PyObject_GetAttrString(port->streams, "current");
  const int64_t number = stream ? PyLong_AsLongLong(stream) : -1;
  Py_XDECREF(stream);
  if (!PyErr_Occurred()) chosen = {port, now, number};
  return number;
}

// ---- blocks ----------------------------------------------------------------------------------

Shelf** shelf_place(Port* port, int64_t size, int64_t stream) {
  const uint64_t hash =
      (static_cast<uint64_t>(size / kAlignment) * 31 + stream) * 0x9E3779B97F4A7C15;
  Shelf** place = &port->shelves[hash >> 56];
  while (*place && ((*place)->size != size || (*place)->stream != stream)) place = &(*place)->next;
  return place;
}

Block* block_init(Block* self, Port* port, int64_t nbytes, int64_t stream) {
  Py_INCREF(port);
  self->port = port;
  self->events = nullptr;
  self->weaklist = nullptr;
  self->nbytes = nbytes;
  self->stream = stream;
  self->next = nullptr;
  port->live += nbytes;
  port->peak = std::max(port->peak, port->live);
  return self;
}

// Tells the arena, which knows the events that must pass before the block is free.
void drop(Block* self) {
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyObject* events = self->events ? Py_NewRef(self->events) : PyList_New(0);
  PyObject* word =
      Py_BuildValue("KLLNOO", static_cast<unsigned long long>(self->address),
                    static_cast<long long>(self->nbytes), static_cast<long long>(self->stream),
                    events, self->piece, Py_None);
  PyObject* done = word ? PyObject_CallMethod(self->port->dropped, "append", "(O)", word) : nullptr;
  if (!done) PyErr_WriteUnraisable(nullptr);
  Py_XDECREF(word);
  Py_XDECREF(done);
  PyErr_Restore(type, error, trace);
}

void block_dealloc(PyObject* object) {
  Block* self = as_block(object);
  Port* port = self->port;
  if (self->weaklist) PyObject_ClearWeakRefs(object);
  port->live -= self->nbytes;
  const bool used = self->events && PyList_GET_SIZE(self->events);
  PyTypeObject* type = Py_TYPE(object);
  if (!used && !port->guard && self->stream == self->shelf->stream) {
    Py_CLEAR(self->events);
    self->next = self->shelf->first;
    self->shelf->first = self;
  } else {
    drop(self);
    Py_CLEAR(self->events);
    Py_DECREF(self->piece);
    PyObject_Free(self);
  }
  Py_DECREF(type);
  Py_DECREF(port);
}

PyObject* block_ptr(PyObject* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(as_block(self)->address);
}

PyObject* block_events(PyObject* self, void*) {
  Block* block = as_block(self);
  if (!block->events && !(block->events = PyList_New(0))) return nullptr;
  return Py_NewRef(block->events);
}

PyObject* block_used_by(PyObject* self, PyObject* event) {
  PyObject* events = block_events(self, nullptr);
  const bool done = events && PyList_Append(events, event) == 0;
  Py_XDECREF(events);
  if (!done) return nullptr;
  Py_RETURN_NONE;
}

PyObject* block_readonly(PyObject*, void*) { Py_RETURN_FALSE; }

PyObject* block_streams(PyObject* self, void*) { return Py_NewRef(as_block(self)->port->streams); }

PyMemberDef block_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Block, weaklist), READONLY, nullptr},
    {"port", T_OBJECT_EX, offsetof(Block, port), READONLY, nullptr},
    {"piece", T_OBJECT_EX, offsetof(Block, piece), READONLY, nullptr},
    {"address", T_ULONGLONG, offsetof(Block, address), READONLY, "of the first byte"},
    {"nbytes", T_LONGLONG, offsetof(Block, nbytes), READONLY, "as asked for"},
    {"stream", T_LONGLONG, offsetof(Block, stream), 0, "that used it last"},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef block_getters[] = {
    {"events", block_events, nullptr, "of users outside, that must pass first", nullptr},
    {"readonly", block_readonly, nullptr, "never", nullptr},
    {"streams", block_streams, nullptr, "the streams of the device", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef block_methods[] = {
    {"ptr", block_ptr, METH_NOARGS, "Return the address."},
    {"used_by", block_used_by, METH_O, "Keep the block from reuse until an event of another."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot block_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(block_dealloc)},
                             {Py_tp_members, block_members},
                             {Py_tp_getset, block_getters},
                             {Py_tp_methods, block_methods},
                             {Py_tp_doc, const_cast<char*>("bytes on a device; see arena.py")},
                             {0, nullptr}};
PyType_Spec block_definition = {"needle._core.Block", sizeof(Block), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                block_slots};

// ---- launches --------------------------------------------------------------------------------

bool enter_block(Port* port, PyObject* block) {
  PyObject* done = PyObject_CallMethod(port->streams, "enter", "(O)", block);
  Py_XDECREF(done);
  return done;
}

// Whether the block is of this port and this thread's stream may use it.
bool may_use(Port* port, PyObject* handle) {
  if (!handle || Py_TYPE(handle) != block_type || as_block(handle)->port != port) return false;
  if (!port->several || as_block(handle)->stream == current(port)) return !PyErr_Occurred();
  return !PyErr_Occurred() && enter_block(port, handle);
}

bool add_array(Port* port, Words* words, PyObject* part) {
  const auto* x = reinterpret_cast<Array*>(part);
  uint64_t place;
  if (may_use(port, x->handle)) {
    place = as_block(x->handle)->address + x->offset * kItemSize[x->spec->code];
  } else {  // of another library
    PyObject* number = PyErr_Occurred() ? nullptr : PyObject_CallOneArg(port->address, part);
    place = number ? PyLong_AsUnsignedLongLongMask(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred()) return false;
  }
  return words->add(&place, sizeof place);
}

bool add_part(Port* port, Words* words, PyObject* part) {
  if (PyLong_Check(part)) {
    const uint64_t number = PyLong_AsUnsignedLongLongMask(part);
    return !PyErr_Occurred() && words->add(&number, sizeof number);
  }
  if (PyFloat_Check(part)) {
    const double number = PyFloat_AS_DOUBLE(part);
    return words->add(&number, sizeof number);
  }
  if (PyBytes_Check(part)) return words->add(PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part));
  if (is_array(part)) return add_array(port, words, part);
  PyErr_Format(PyExc_TypeError,
               "expected a number, bytes or an array as a kernel's parameter, got %s",
               Py_TYPE(part)->tp_name);
  return false;
}

bool launch_by_driver(const Port* port, const Kernel& kernel, const Words& words, int64_t stream) {
  PyObject* bytes = PyBytes_FromStringAndSize(words.bytes, static_cast<Py_ssize_t>(words.n));
  const unsigned *grid = kernel.grid, *block = kernel.block;
  PyObject* done =
      bytes ? PyObject_CallMethod(port->driver, "launch", "O(III)(III)IOL", kernel.function,
                                  grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                  kernel.shared, bytes, static_cast<long long>(stream))
            : nullptr;
  Py_XDECREF(bytes);
  Py_XDECREF(done);
  return done;
}

// The kernel as the driver's call takes it: a number, or the first of several items as one.
bool read_handle(PyObject* function, void** handle) {
  if (PyTuple_Check(function) && PyTuple_GET_SIZE(function)) {
    function = PyTuple_GET_ITEM(function, 0);
  }
  PyObject* number = PyNumber_Long(function);
  *handle = number ? PyLong_AsVoidPtr(number) : nullptr;
  Py_XDECREF(number);
  return !PyErr_Occurred();
}

bool enter_device(const Port* port) {
  PyObject* done = PyObject_CallMethod(port->driver, "enter", nullptr);
  Py_XDECREF(done);
  if (done) entered = port->token;
  return done;
}

// again: the driver has launched this kernel with this shared memory before.
bool run(const Port* port, const Kernel& kernel, Words* words, bool again) {
  const int64_t stream = current(port);
  if (stream == -1 && PyErr_Occurred()) return false;
  // A kernel with much shared memory has to be told so first, once.
  if (!port->call || (kernel.shared > kUnasked && !again)) {
    return launch_by_driver(port, kernel, *words, stream);
  }
  if (entered != port->token && !enter_device(port)) return false;
  void* extra[5] = {reinterpret_cast<void*>(1), words->bytes, reinterpret_cast<void*>(2), &words->n,
                    nullptr};
  const unsigned *grid = kernel.grid, *block = kernel.block;
  int code;
  {
    const Released released;  // the driver waits where too many launches are under way
    code = port->call(kernel.handle, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                      kernel.shared, reinterpret_cast<void*>(stream), nullptr, extra);
  }
  if (!code) return true;
  PyObject* raised = PyObject_CallMethod(port->driver, "refused", "i", code);
  Py_XDECREF(raised);
  return raised;
}

// A number, or a tuple of three.
bool read_grid(PyObject* source, unsigned* grid) {
  grid[1] = grid[2] = 1;
  if (!PyTuple_Check(source)) {
    grid[0] = static_cast<unsigned>(PyLong_AsUnsignedLong(source));
  } else if (PyTuple_GET_SIZE(source) == 3) {
    for (int i = 0; i < 3; i++) {
      grid[i] = static_cast<unsigned>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(source, i)));
    }
  } else {
    PyErr_SetString(PyExc_TypeError, "expected a number or three numbers as the grid");
  }
  return !PyErr_Occurred();
}

// The threads of a block, and the bytes of shared memory in addition to those it declares.
bool read_named(PyObject* const* args, PyObject* names, Kernel* kernel) {
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    const bool is_block = PyUnicode_CompareWithASCIIString(name, "block") == 0;
    if (!is_block && PyUnicode_CompareWithASCIIString(name, "shared") != 0) {
      PyErr_Format(PyExc_TypeError, "launch: unexpected argument %R", name);
      return false;
    }
    const auto number = static_cast<unsigned>(PyLong_AsUnsignedLong(args[i]));
    if (PyErr_Occurred()) return false;
    (is_block ? kernel->block[0] : kernel->shared) = number;
  }
  return true;
}

// launch(function, grid, *parts, block=256, shared=0)
PyObject* port_launch(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  Port* port = as_port(self);
  if (n < 2) return PyErr_Format(PyExc_TypeError, "launch(function, grid, *parts, block=256)");
  Kernel kernel = {args[0], nullptr, {1, 1, 1}, {kThreads, 1, 1}, 0};
  Words words;
  if (!read_grid(args[1], kernel.grid) || !read_named(args + n, names, &kernel) ||
      (port->call && !read_handle(args[0], &kernel.handle))) {
    return nullptr;
  }
  for (Py_ssize_t i = 2; i < n; i++) {
    if (!add_part(port, &words, args[i])) return nullptr;
  }
  if (!run(port, kernel, &words, false)) return nullptr;
  port->launches++;
  port->last = words;
  Py_INCREF(args[0]);
  Py_XDECREF(port->kernel.function);
  port->kernel = kernel;
  Py_RETURN_NONE;
}

// again(count, arrays): the launch that was made since there were so many, for other arrays; None
// where there was none, or several, or its parameters do not begin with these arrays, each on a
// boundary of 16 bytes.
PyObject* port_again(PyObject* self, PyObject* args) {
  Port* port = as_port(self);
  long long count;
  PyObject* arrays;
  if (!PyArg_ParseTuple(args, "LO!", &count, &PyTuple_Type, &arrays)) return nullptr;
  const Py_ssize_t n = PyTuple_GET_SIZE(arrays);
  const size_t places = n * sizeof(uint64_t);
  if (port->launches != count + 1 || port->last.n < places) Py_RETURN_NONE;
  for (Py_ssize_t i = 0; i < n; i++) {
    uint64_t place, used;
    PyObject* part = PyTuple_GET_ITEM(arrays, i);
    std::memcpy(&used, port->last.bytes + i * sizeof used, sizeof used);
    if (!is_array(part) || !place_of(port, reinterpret_cast<Array*>(part), &place)) {
      if (PyErr_Occurred()) return nullptr;
      Py_RETURN_NONE;
    }
    if (place != used) Py_RETURN_NONE;
  }
  auto* made = PyObject_NewVar(Launch, launch_type, static_cast<Py_ssize_t>(port->last.n - places));
  if (!made) return nullptr;
  Py_INCREF(made->port = port);
  made->kernel = port->kernel;
  Py_INCREF(made->kernel.function);
  std::memcpy(made->tail, port->last.bytes + places, port->last.n - places);
  return reinterpret_cast<PyObject*>(made);
}

void launch_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_DECREF(reinterpret_cast<Launch*>(self)->port);
  Py_DECREF(reinterpret_cast<Launch*>(self)->kernel.function);
  PyObject_Free(self);
  Py_DECREF(type);
}

// launch(*arrays): run it on these; False where one is not on a boundary of 16 bytes.
PyObject* launch_call(PyObject* self, PyObject* args, PyObject*) {
  auto* launch = reinterpret_cast<Launch*>(self);
  Words words;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
    if (!add_part(launch->port, &words, PyTuple_GET_ITEM(args, i))) return nullptr;
    if (words.bytes[words.n - 8] & 15) Py_RETURN_FALSE;
  }
  if (!words.add(launch->tail, Py_SIZE(launch)) ||
      !run(launch->port, launch->kernel, &words, true)) {
    return nullptr;
  }
  Py_RETURN_TRUE;
}

PyType_Slot launch_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(launch_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(launch_call)},
    {Py_tp_doc, const_cast<char*>("a kernel, ready but for the arrays; see backend.py")},
    {0, nullptr}};
PyType_Spec launch_definition = {"needle._core.Launch", offsetof(Launch, tail), 1,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 launch_slots};

// ---- Port ------------------------------------------------------------------------------------

// Whether the settings in force are those without a limit of memory that the arena saw last.
bool is_limitless(const Port* port) {
  PyObject* value = nullptr;
  if (PyContextVar_Get(settings, nullptr, &value) < 0) PyErr_Clear();
  Py_XDECREF(value);  // the context holds it
  return value && value == port->limitless;
}

bool read_number(PyObject* from, const char* name, int64_t* number) {
  PyObject* value = PyObject_GetAttrString(from, name);
  *number = value ? PyLong_AsLongLong(value) : 0;
  Py_XDECREF(value);
  return !PyErr_Occurred();
}

// Port(driver, streams, dropped, address)
PyObject* port_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *driver, *streams, *dropped, *address;
  if (!PyArg_ParseTuple(args, "OOOO", &driver, &streams, &dropped, &address)) return nullptr;
  auto* self = as_port(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->driver = Py_NewRef(driver);
  self->streams = Py_NewRef(streams);
  self->dropped = Py_NewRef(dropped);
  self->address = Py_NewRef(address);
  self->limitless = Py_NewRef(Py_None);
  int64_t call = 0;
  PyObject* properties = PyObject_GetAttrString(driver, "properties");
  const bool right = properties && read_number(properties, "guard", &self->guard) &&
                     read_number(properties, "launcher", &call) &&
                     read_number(streams, "main", &self->main);
  Py_XDECREF(properties);
  self->call = reinterpret_cast<LaunchCall>(call);
  self->token = reinterpret_cast<int64_t>(driver);
  if (right && !settings) {
    PyObject* config = PyImport_ImportModule("needle.config");
    settings = config ? PyObject_GetAttrString(config, "_current") : nullptr;
    Py_XDECREF(config);
  }
  if (right && settings) return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  return nullptr;
}

int port_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_port(self)->driver);
  Py_VISIT(as_port(self)->streams);
  Py_VISIT(as_port(self)->dropped);
  Py_VISIT(as_port(self)->address);
  Py_VISIT(as_port(self)->limitless);
  return 0;
}

int port_clear(PyObject* self) {
  // Not what a block's end needs: blocks hold the port, which the collector then leaves.
  Py_CLEAR(as_port(self)->streams);
  Py_CLEAR(as_port(self)->driver);
  return 0;
}

void empty_shelf(Shelf* shelf, PyObject* pieces) {
  while (Block* block = shelf->first) {
    shelf->first = block->next;
    if (pieces && PyList_Append(pieces, block->piece) < 0) PyErr_Clear();
    Py_DECREF(block->piece);
    PyObject_Free(block);
  }
}

void port_dealloc(PyObject* object) {
  Port* self = as_port(object);
  PyObject_GC_UnTrack(object);
  for (Shelf* shelf : self->shelves) {
    while (shelf) {
      empty_shelf(shelf, nullptr);
      Shelf* next = shelf->next;
      PyMem_Free(shelf);
      shelf = next;
    }
  }
  Py_XDECREF(self->driver);
  Py_XDECREF(self->streams);
  Py_XDECREF(self->dropped);
  Py_XDECREF(self->address);
  Py_XDECREF(self->limitless);
  Py_XDECREF(self->kernel.function);
  if (chosen.port == self) chosen.port = nullptr;
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* port_lend(PyObject* self, PyObject* nbytes) {
  const int64_t n = PyLong_AsLongLong(nbytes);
  if (n == -1 && PyErr_Occurred()) PyErr_Clear();  // the arena will raise the error
  PyObject* block = n < 0 ? nullptr : lend(as_port(self), n);
  if (block || PyErr_Occurred()) return block;
  Py_RETURN_NONE;
}

// block(address, nbytes, size, piece): a block over a piece of that size for its stream.
PyObject* port_block(PyObject* self, PyObject* args) {
  unsigned long long address;
  long long nbytes, size, stream;
  PyObject* piece;
  if (!PyArg_ParseTuple(args, "KLLLO", &address, &nbytes, &size, &stream, &piece)) return nullptr;
  Shelf** place = shelf_place(as_port(self), size, stream);
  if (!*place) {
    auto* shelf = static_cast<Shelf*>(PyMem_Malloc(sizeof(Shelf)));
    if (!shelf) return PyErr_NoMemory();
    *shelf = {size, stream, nullptr, nullptr};
    *place = shelf;
  }
  Block* block = PyObject_New(Block, block_type);
  if (!block) return nullptr;
  block->shelf = *place;
  block->address = address;
  block->piece = Py_NewRef(piece);
  return reinterpret_cast<PyObject*>(block_init(block, as_port(self), nbytes, stream));
}

// drain(): the pieces of all blocks that nobody holds.
PyObject* port_drain(PyObject* self, PyObject*) {
  PyObject* pieces = PyList_New(0);
  for (Shelf* shelf : as_port(self)->shelves) {
    for (; pieces && shelf; shelf = shelf->next) empty_shelf(shelf, pieces);
  }
  return pieces;
}

PyObject* port_changed(PyObject* self, PyObject*) {
  as_port(self)->several = true;
  switches++;
  Py_RETURN_NONE;
}

PyObject* set_entered(PyObject*, PyObject* driver) {
  entered = reinterpret_cast<int64_t>(driver);
  Py_RETURN_NONE;
}

PyMethodDef port_methods[] = {
    {"lend", port_lend, METH_O, "lend(nbytes): a block, or None: ask the arena."},
    {"block", port_block, METH_VARARGS, "block(address, nbytes, size, stream, piece)"},
    {"drain", port_drain, METH_NOARGS, "Give up the blocks that nobody holds: their pieces."},
    {"changed", port_changed, METH_NOARGS, "A thread chose a stream."},
    {"launch", function_of(port_launch), METH_FASTCALL | METH_KEYWORDS,
     "launch(function, grid, *parts, block=256, shared=0)"},
    {"again", port_again, METH_VARARGS,
     "again(count, arrays): a Launch like the only one since there were so many, or None."},
    {nullptr, nullptr, 0, nullptr}};
PyMemberDef port_members[] = {
    {"live", T_LONGLONG, offsetof(Port, live), READONLY, "bytes lent"},
    {"launches", T_LONGLONG, offsetof(Port, launches), READONLY, "how many there were"},
    {"peak", T_LONGLONG, offsetof(Port, peak), READONLY, "the most bytes lent"},
    {"waiting", T_BOOL, offsetof(Port, waiting), 0, "whether something waits for events"},
    {"limitless", T_OBJECT_EX, offsetof(Port, limitless), 0, "settings without a limit of memory"},
    {nullptr, 0, 0, 0, nullptr}};
PyType_Slot port_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(port_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(port_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(port_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(port_clear)},
    {Py_tp_methods, port_methods},
    {Py_tp_members, port_members},
    {Py_tp_doc, const_cast<char*>("what every operation needs of a device")},
    {0, nullptr}};
PyType_Spec port_definition = {"needle._core.Port", sizeof(Port), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, port_slots};
// address(array): where it begins, once this thread's stream may use it. None: not on a block.
PyObject* address_of(PyObject*, PyObject* part) {
  auto* x = reinterpret_cast<Array*>(part);
  if (is_array(part) && x->handle && Py_TYPE(x->handle) == block_type) {
    Block* block = as_block(x->handle);
    if (!may_use(block->port, x->handle)) return nullptr;
    return PyLong_FromUnsignedLongLong(block->address + x->offset * kItemSize[x->spec->code]);
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"address", address_of, METH_O, "address(array on a Block), or None"},
    {"set_entered", set_entered, METH_O, "A driver made its device current in this thread."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* lend(Port* port, int64_t nbytes) {
  const int64_t whole = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  if (port->guard || PyObject_Size(port->dropped) || !is_limitless(port)) return nullptr;
  if (port->waiting && ++port->lent % kPoll == 0) return nullptr;
  const int64_t stream = current(port);
  if (PyErr_Occurred()) return nullptr;
  Shelf* shelf = *shelf_place(port, std::max(whole, kAlignment), stream);
  Block* block = shelf ? shelf->first : nullptr;
  if (!block) return nullptr;
  shelf->first = block->next;
  PyObject_Init(reinterpret_cast<PyObject*>(block), block_type);
  return reinterpret_cast<PyObject*>(block_init(block, port, nbytes, stream));
}

bool place_of(Port* port, const Array* x, uint64_t* place) {
  if (!may_use(port, x->handle)) return false;
  *place = as_block(x->handle)->address + x->offset * kItemSize[x->spec->code];
  return *place % 16 == 0;
}

bool run_launch(const Launch* launch, const uint64_t* places, int n) {
  Words words;
  return words.add(places, n * sizeof *places) && words.add(launch->tail, Py_SIZE(launch)) &&
         run(launch->port, launch->kernel, &words, true);
}

bool add_port_types(PyObject* module) {
  block_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&block_definition));
  launch_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&launch_definition));
  PyObject* port = PyType_FromSpec(&port_definition);
  return block_type && launch_type && port && PyModule_AddObjectRef(module, "Port", port) == 0 &&
         PyModule_AddObjectRef(module, "Block", reinterpret_cast<PyObject*>(block_type)) == 0 &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace needle
