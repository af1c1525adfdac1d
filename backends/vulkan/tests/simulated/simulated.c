/*
 * A Vulkan driver that shows another device than the one behind it.
 *
 * It forwards every call to a real driver (lavapipe) and changes what that says of itself: kind,
 * memory types and heaps, limits, extensions, queue families; and it refuses what such a device
 * would refuse. README.md in this folder lists the environment that steers it, and its limits.
 *
 * Handles pass unchanged in both directions, so calls that are not changed cost nothing.
 */

#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vulkan.h>
#include <vulkan/vk_icd.h>

#define MOST 4096

static pid_t loaded_in;

__attribute__((constructor)) static void note_process(void) { loaded_in = getpid(); }

/* As NVIDIA's driver, which crashes or waits for ever at the end of a forked child. */
__attribute__((destructor)) static void end(void) { if (getpid() != loaded_in) abort(); }

static PFN_vkGetInstanceProcAddr real_instance_proc;
static VkResult (*real_negotiate)(uint32_t *);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct {
    VkPhysicalDeviceType kind;
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    VkDeviceSize alignment, range, max_allocation, max_buffer;
    uint32_t max_allocations;
    int no_import, import_code, compute_family, failing_description;
    VkPhysicalDeviceMemoryProperties memory;
    VkDeviceSize used[VK_MAX_MEMORY_HEAPS];
    uint32_t count;
    uint32_t real_types;
} sim;

/* What was allocated: its type here, and a copy of its own where memory is not coherent. */
static struct allocation {
    VkDeviceMemory memory;
    VkDeviceSize size;
    uint32_t type;
    char *shadow, *mapped;
} live[MOST];

static const char *text(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static unsigned long long number(const char *name, unsigned long long otherwise)
{
    const char *value = getenv(name);
    return value && *value ? strtoull(value, NULL, 0) : otherwise;
}

/* "flags:heap,flags:heap" and "bytes:local,bytes:local" */
static uint32_t pairs(const char *list, unsigned long long (*into)[2], uint32_t most)
{
    uint32_t count = 0;
    for (char *end; *list && count < most; ++count) {
        into[count][0] = strtoull(list, &end, 0);
        into[count][1] = *end == ':' ? strtoull(end + 1, &end, 0) : 0;
        list = *end == ',' ? end + 1 : end;
    }
    return count;
}

static void configure(void)
{
    unsigned long long rows[32][2];
    static const char *const kinds[] = {"other", "integrated", "discrete", "virtual", "cpu"};
    memset(&sim, 0, sizeof sim);
    memset(live, 0, sizeof live);
    const char *kind = text("SIMULATED_KIND", "discrete");
    for (int i = 0; i < 5; ++i)
        if (!strcmp(kind, kinds[i]))
            sim.kind = (VkPhysicalDeviceType)i;
    snprintf(sim.name, sizeof sim.name, "%s", text("SIMULATED_NAME", "simulated device"));
    sim.alignment = number("SIMULATED_ALIGNMENT", 256);
    sim.range = number("SIMULATED_RANGE", 128 << 20);
    sim.max_allocation = number("SIMULATED_MAX_ALLOCATION", 1ull << 30);
    sim.max_buffer = number("SIMULATED_MAX_BUFFER", 1ull << 30);
    sim.max_allocations = (uint32_t)number("SIMULATED_MAX_ALLOCATIONS", 4096);
    sim.no_import = (int)number("SIMULATED_NO_IMPORT", 1);
    sim.import_code = (int)strtol(text("SIMULATED_IMPORT_CODE", "0"), NULL, 0);
    sim.compute_family = (int)number("SIMULATED_COMPUTE_FAMILY", 0);
    sim.failing_description = (int)number("SIMULATED_FAILING_DESCRIPTION", 0);
    const char *heaps = text("SIMULATED_HEAPS", "2147483648:1,2147483648:0,268435456:1");
    sim.memory.memoryHeapCount = pairs(heaps, rows, VK_MAX_MEMORY_HEAPS);
    for (uint32_t i = 0; i < sim.memory.memoryHeapCount; ++i) {
        sim.memory.memoryHeaps[i].size = rows[i][0];
        sim.memory.memoryHeaps[i].flags = rows[i][1] ? VK_MEMORY_HEAP_DEVICE_LOCAL_BIT : 0;
    }
    const char *types = text("SIMULATED_TYPES", "11:0,1:0,6:1,10:1,7:2");
    sim.memory.memoryTypeCount = pairs(types, rows, VK_MAX_MEMORY_TYPES);
    for (uint32_t i = 0; i < sim.memory.memoryTypeCount; ++i) {
        sim.memory.memoryTypes[i].propertyFlags = (VkFlags)rows[i][0];
        sim.memory.memoryTypes[i].heapIndex = (uint32_t)rows[i][1];
    }
}

/* SIMULATED_REFUSE=function:after:times:code,... refuses calls from the one after the first `after`. */
static VkResult refused(const char *function)
{
    static struct { char name[64]; unsigned long calls; } counters[32];
    const char *list = getenv("SIMULATED_REFUSE");
    if (!list || !*list)
        return VK_SUCCESS;
    pthread_mutex_lock(&mutex);
    int slot = 0;
    while (slot < 31 && counters[slot].name[0] && strcmp(counters[slot].name, function))
        ++slot;
    snprintf(counters[slot].name, sizeof counters[slot].name, "%s", function);
    unsigned long call = counters[slot].calls++;
    pthread_mutex_unlock(&mutex);
    for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char name[64];
        unsigned long after, times;
        int code;
        if (sscanf(at, "%63[^:]:%lu:%lu:%d", name, &after, &times, &code) == 4
            && !strcmp(name, function) && call >= after && call < after + times)
            return (VkResult)code;
    }
    return VK_SUCCESS;
}

static PFN_vkVoidFunction real(const char *name);
#define REAL(name) ((PFN_##name)real(#name))

static VkInstance the_instance;
static VkDevice the_device;

static PFN_vkVoidFunction real(const char *name)
{
    PFN_vkVoidFunction found = real_instance_proc(the_instance, name);
    return found ? found : real_instance_proc(NULL, name);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(
    const VkInstanceCreateInfo *info, const VkAllocationCallbacks *allocator, VkInstance *instance)
{
    configure();
    VkResult result = refused("vkCreateInstance");
    if (result)
        return result;
    result = ((PFN_vkCreateInstance)real_instance_proc(NULL, "vkCreateInstance"))(
        info, allocator, instance);
    if (!result)
        the_instance = *instance;
    return result;
}

static void change(VkPhysicalDeviceProperties *properties)
{
    properties->deviceType = sim.kind;
    snprintf(properties->deviceName, sizeof properties->deviceName, "%s", sim.name);
    properties->limits.minStorageBufferOffsetAlignment = sim.alignment;
    properties->limits.maxStorageBufferRange = (uint32_t)sim.range;
    properties->limits.maxMemoryAllocationCount = sim.max_allocations;
}

static VKAPI_ATTR void VKAPI_CALL properties1(
    VkPhysicalDevice device, VkPhysicalDeviceProperties *properties)
{
    REAL(vkGetPhysicalDeviceProperties)(device, properties);
    change(properties);
}

static VKAPI_ATTR void VKAPI_CALL properties2(
    VkPhysicalDevice device, VkPhysicalDeviceProperties2 *properties)
{
    REAL(vkGetPhysicalDeviceProperties2)(device, properties);
    change(&properties->properties);
    for (VkBaseOutStructure *next = properties->pNext; next; next = next->pNext) {
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES)
            ((VkPhysicalDeviceMaintenance3Properties *)next)->maxMemoryAllocationSize =
                sim.max_allocation;
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES)
            ((VkPhysicalDeviceVulkan11Properties *)next)->maxMemoryAllocationSize =
                sim.max_allocation;
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES)
            ((VkPhysicalDeviceMaintenance4Properties *)next)->maxBufferSize = sim.max_buffer;
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES)
            ((VkPhysicalDeviceVulkan13Properties *)next)->maxBufferSize = sim.max_buffer;
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES)
            ((VkPhysicalDeviceIDProperties *)next)->deviceUUID[0] ^= 0x5a;
    }
}

static VKAPI_ATTR void VKAPI_CALL memory1(
    VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties *memory)
{
    (void)device;
    *memory = sim.memory;
}

static VKAPI_ATTR void VKAPI_CALL memory2(
    VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *memory)
{
    (void)device;
    memory->memoryProperties = sim.memory;
}

static VKAPI_ATTR VkResult VKAPI_CALL device_extensions(
    VkPhysicalDevice device, const char *layer, uint32_t *count, VkExtensionProperties *into)
{
    if (sim.failing_description)
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    VkExtensionProperties all[512];
    uint32_t found = 512, kept = 0;
    VkResult result = REAL(vkEnumerateDeviceExtensionProperties)(device, layer, &found, all);
    if (result)
        return result;
    for (uint32_t i = 0; i < found; ++i)
        if (!sim.no_import || strcmp(all[i].extensionName, "VK_EXT_external_memory_host"))
            all[kept++] = all[i];
    if (into) {
        result = *count < kept ? VK_INCOMPLETE : VK_SUCCESS;
        kept = *count < kept ? *count : kept;
        memcpy(into, all, kept * sizeof *all);
    }
    *count = kept;
    return result;
}

/* With SIMULATED_COMPUTE_FAMILY: family 0 has graphics, family 1 has compute only. */
static void add_family(uint32_t *count, VkQueueFamilyProperties *into, VkQueueFamilyProperties one)
{
    if (!into) {
        *count = 2;
        return;
    }
    if (*count > 0)
        into[0] = one;
    if (*count > 1) {
        into[1] = one;
        into[1].queueFlags &= ~(VkQueueFlags)VK_QUEUE_GRAPHICS_BIT;
    }
    *count = *count > 2 ? 2 : *count;
}

static VKAPI_ATTR void VKAPI_CALL families1(
    VkPhysicalDevice device, uint32_t *count, VkQueueFamilyProperties *into)
{
    uint32_t one = 1;
    VkQueueFamilyProperties first;
    if (!sim.compute_family) {
        REAL(vkGetPhysicalDeviceQueueFamilyProperties)(device, count, into);
        return;
    }
    REAL(vkGetPhysicalDeviceQueueFamilyProperties)(device, &one, &first);
    add_family(count, into, first);
}

static VKAPI_ATTR void VKAPI_CALL families2(
    VkPhysicalDevice device, uint32_t *count, VkQueueFamilyProperties2 *into)
{
    if (!sim.compute_family) {
        REAL(vkGetPhysicalDeviceQueueFamilyProperties2)(device, count, into);
        return;
    }
    VkQueueFamilyProperties plain[2];
    uint32_t two = into ? *count : 2;
    families1(device, &two, into ? plain : NULL);
    for (uint32_t i = 0; into && i < two; ++i)
        into[i].queueFamilyProperties = plain[i];
    *count = two;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(
    VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
    const VkAllocationCallbacks *allocator, VkDevice *device)
{
    VkResult result = refused("vkCreateDevice");
    if (result)
        return result;
    VkDeviceQueueCreateInfo queues[4];
    VkDeviceCreateInfo changed = *info;
    for (uint32_t i = 0; i < info->queueCreateInfoCount && i < 4; ++i) {
        queues[i] = info->pQueueCreateInfos[i];
        queues[i].queueFamilyIndex = 0;
    }
    changed.pQueueCreateInfos = queues;
    result = REAL(vkCreateDevice)(physical, &changed, allocator, device);
    if (!result) {
        the_device = *device;
        pthread_mutex_lock(&mutex);
        memset(sim.used, 0, sizeof sim.used);
        sim.count = 0;
        pthread_mutex_unlock(&mutex);
    }
    return result;
}

static VKAPI_ATTR void VKAPI_CALL device_queue(
    VkDevice device, uint32_t family, uint32_t index, VkQueue *queue)
{
    (void)family;
    REAL(vkGetDeviceQueue)(device, 0, index, queue);
}

static VKAPI_ATTR VkResult VKAPI_CALL command_pool(
    VkDevice device, const VkCommandPoolCreateInfo *info, const VkAllocationCallbacks *allocator,
    VkCommandPool *pool)
{
    VkCommandPoolCreateInfo changed = *info;
    changed.queueFamilyIndex = 0;
    return REAL(vkCreateCommandPool)(device, &changed, allocator, pool);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_buffer(
    VkDevice device, const VkBufferCreateInfo *info, const VkAllocationCallbacks *allocator,
    VkBuffer *buffer)
{
    VkResult result = refused("vkCreateBuffer");
    if (!result && info->size > sim.max_buffer)
        result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return result ? result : REAL(vkCreateBuffer)(device, info, allocator, buffer);
}

static void change_needs(VkMemoryRequirements *needs)
{
    if (needs->alignment < sim.alignment)
        needs->alignment = sim.alignment;
    needs->size = (needs->size + needs->alignment - 1) / needs->alignment * needs->alignment;
    needs->memoryTypeBits = (1u << sim.memory.memoryTypeCount) - 1;
}

static VKAPI_ATTR void VKAPI_CALL buffer_needs(
    VkDevice device, VkBuffer buffer, VkMemoryRequirements *needs)
{
    REAL(vkGetBufferMemoryRequirements)(device, buffer, needs);
    change_needs(needs);
}

static VKAPI_ATTR void VKAPI_CALL buffer_needs2(
    VkDevice device, const VkBufferMemoryRequirementsInfo2 *info, VkMemoryRequirements2 *needs)
{
    REAL(vkGetBufferMemoryRequirements2)(device, info, needs);
    change_needs(&needs->memoryRequirements);
}

static struct allocation *find(VkDeviceMemory memory)
{
    for (int i = 0; i < MOST; ++i)
        if (live[i].memory == memory)
            return &live[i];
    return NULL;
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate(
    VkDevice device, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *allocator,
    VkDeviceMemory *memory)
{
    VkResult result = refused("vkAllocateMemory");
    if (result)
        return result;
    int import = 0;
    for (const VkBaseInStructure *next = info->pNext; next; next = next->pNext)
        import |= next->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT;
    if (import && sim.import_code)
        return (VkResult)sim.import_code;
    VkMemoryType type = sim.memory.memoryTypes[info->memoryTypeIndex];
    VkMemoryAllocateInfo changed = *info;
    changed.memoryTypeIndex = 0;
    pthread_mutex_lock(&mutex);
    struct allocation *slot = find(VK_NULL_HANDLE);
    if (sim.count >= sim.max_allocations || !slot)
        result = VK_ERROR_TOO_MANY_OBJECTS;
    else if (info->allocationSize > sim.max_allocation
             || (!import && sim.used[type.heapIndex] + info->allocationSize
                                > sim.memory.memoryHeaps[type.heapIndex].size))
        result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    else
        result = REAL(vkAllocateMemory)(device, &changed, allocator, memory);
    if (!result) {
        slot->memory = *memory;
        slot->size = import ? 0 : info->allocationSize;
        slot->type = info->memoryTypeIndex;
        sim.used[type.heapIndex] += slot->size;
        ++sim.count;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static VKAPI_ATTR void VKAPI_CALL free_memory(
    VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *allocator)
{
    pthread_mutex_lock(&mutex);
    struct allocation *slot = memory ? find(memory) : NULL;
    if (slot) {
        sim.used[sim.memory.memoryTypes[slot->type].heapIndex] -= slot->size;
        --sim.count;
        free(slot->shadow);
        memset(slot, 0, sizeof *slot);
    }
    pthread_mutex_unlock(&mutex);
    REAL(vkFreeMemory)(device, memory, allocator);
}

/* Memory that is not coherent is mapped as a copy, which only flushes and invalidations update. */
static VKAPI_ATTR VkResult VKAPI_CALL map(
    VkDevice device, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize size,
    VkMemoryMapFlags flags, void **data)
{
    VkResult result = refused("vkMapMemory");
    if (result)
        return result;
    pthread_mutex_lock(&mutex);
    struct allocation *slot = find(memory);
    VkFlags has = slot ? sim.memory.memoryTypes[slot->type].propertyFlags : 0;
    result = has & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT
                 ? REAL(vkMapMemory)(device, memory, 0, VK_WHOLE_SIZE, flags, data)
                 : VK_ERROR_MEMORY_MAP_FAILED;
    if (!result) {
        slot->mapped = *data;
        if (!(has & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT)) {
            if (!slot->shadow)
                slot->shadow = calloc(1, slot->size);
            *data = slot->shadow;
        }
        *data = (char *)*data + offset;
    }
    (void)size;
    pthread_mutex_unlock(&mutex);
    return result;
}

static VkResult synchronise(uint32_t count, const VkMappedMemoryRange *ranges, int flush)
{
    pthread_mutex_lock(&mutex);
    for (uint32_t i = 0; i < count; ++i) {
        struct allocation *slot = find(ranges[i].memory);
        if (!slot || !slot->shadow)
            continue;
        VkDeviceSize from = ranges[i].offset;
        VkDeviceSize size = ranges[i].size == VK_WHOLE_SIZE ? slot->size - from : ranges[i].size;
        if (flush)
            memcpy(slot->mapped + from, slot->shadow + from, size);
        else
            memcpy(slot->shadow + from, slot->mapped + from, size);
    }
    pthread_mutex_unlock(&mutex);
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL flush(
    VkDevice device, uint32_t count, const VkMappedMemoryRange *ranges)
{
    (void)device;
    return synchronise(count, ranges, 1);
}

static VKAPI_ATTR VkResult VKAPI_CALL invalidate(
    VkDevice device, uint32_t count, const VkMappedMemoryRange *ranges)
{
    (void)device;
    return synchronise(count, ranges, 0);
}

static VKAPI_ATTR VkResult VKAPI_CALL bind(
    VkDevice device, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize offset)
{
    if (offset % sim.alignment) {
        fprintf(stderr, "simulated device: bound at %llu, not a multiple of %llu\n",
                (unsigned long long)offset, (unsigned long long)sim.alignment);
        abort();
    }
    return REAL(vkBindBufferMemory)(device, buffer, memory, offset);
}

static VKAPI_ATTR VkResult VKAPI_CALL host_pointer(
    VkDevice device, VkExternalMemoryHandleTypeFlagBits type, const void *pointer,
    VkMemoryHostPointerPropertiesEXT *properties)
{
    VkResult (*there)(VkDevice, VkExternalMemoryHandleTypeFlagBits, const void *,
                      VkMemoryHostPointerPropertiesEXT *) =
        (void *)REAL(vkGetDeviceProcAddr)(device, "vkGetMemoryHostPointerPropertiesEXT");
    VkResult result = refused("vkGetMemoryHostPointerPropertiesEXT");
    result = result ? result : there(device, type, pointer, properties);
    properties->memoryTypeBits = (1u << sim.memory.memoryTypeCount) - 1;
    return result;
}

static VKAPI_ATTR void VKAPI_CALL write_sets(
    VkDevice device, uint32_t count, const VkWriteDescriptorSet *writes, uint32_t copies,
    const VkCopyDescriptorSet *copied)
{
    for (uint32_t i = 0; i < count; ++i)
        for (uint32_t k = 0; writes[i].pBufferInfo && k < writes[i].descriptorCount; ++k)
            if (writes[i].pBufferInfo[k].offset % sim.alignment
                || writes[i].pBufferInfo[k].range > sim.range) {
                fprintf(stderr, "simulated device: a binding breaks its limits\n");
                abort();
            }
    REAL(vkUpdateDescriptorSets)(device, count, writes, copies, copied);
}

static VKAPI_ATTR VkResult VKAPI_CALL submit(
    VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence)
{
    VkResult result = refused("vkQueueSubmit");
    return result ? result : REAL(vkQueueSubmit)(queue, count, infos, fence);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char *name);
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance, const char *name);

static const struct { const char *name; PFN_vkVoidFunction function; } changed[] = {
    {"vkGetInstanceProcAddr", (PFN_vkVoidFunction)instance_proc},
    {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_proc},
    {"vkCreateInstance", (PFN_vkVoidFunction)create_instance},
    {"vkGetPhysicalDeviceProperties", (PFN_vkVoidFunction)properties1},
    {"vkGetPhysicalDeviceProperties2", (PFN_vkVoidFunction)properties2},
    {"vkGetPhysicalDeviceProperties2KHR", (PFN_vkVoidFunction)properties2},
    {"vkGetPhysicalDeviceMemoryProperties", (PFN_vkVoidFunction)memory1},
    {"vkGetPhysicalDeviceMemoryProperties2", (PFN_vkVoidFunction)memory2},
    {"vkGetPhysicalDeviceMemoryProperties2KHR", (PFN_vkVoidFunction)memory2},
    {"vkEnumerateDeviceExtensionProperties", (PFN_vkVoidFunction)device_extensions},
    {"vkGetPhysicalDeviceQueueFamilyProperties", (PFN_vkVoidFunction)families1},
    {"vkGetPhysicalDeviceQueueFamilyProperties2", (PFN_vkVoidFunction)families2},
    {"vkGetPhysicalDeviceQueueFamilyProperties2KHR", (PFN_vkVoidFunction)families2},
    {"vkCreateDevice", (PFN_vkVoidFunction)create_device},
    {"vkGetDeviceQueue", (PFN_vkVoidFunction)device_queue},
    {"vkCreateCommandPool", (PFN_vkVoidFunction)command_pool},
    {"vkCreateBuffer", (PFN_vkVoidFunction)create_buffer},
    {"vkGetBufferMemoryRequirements", (PFN_vkVoidFunction)buffer_needs},
    {"vkGetBufferMemoryRequirements2", (PFN_vkVoidFunction)buffer_needs2},
    {"vkGetBufferMemoryRequirements2KHR", (PFN_vkVoidFunction)buffer_needs2},
    {"vkAllocateMemory", (PFN_vkVoidFunction)allocate},
    {"vkFreeMemory", (PFN_vkVoidFunction)free_memory},
    {"vkMapMemory", (PFN_vkVoidFunction)map},
    {"vkFlushMappedMemoryRanges", (PFN_vkVoidFunction)flush},
    {"vkInvalidateMappedMemoryRanges", (PFN_vkVoidFunction)invalidate},
    {"vkBindBufferMemory", (PFN_vkVoidFunction)bind},
    {"vkGetMemoryHostPointerPropertiesEXT", (PFN_vkVoidFunction)host_pointer},
    {"vkUpdateDescriptorSets", (PFN_vkVoidFunction)write_sets},
    {"vkQueueSubmit", (PFN_vkVoidFunction)submit},
};

static PFN_vkVoidFunction ours(const char *name)
{
    for (size_t i = 0; i < sizeof changed / sizeof *changed; ++i)
        if (!strcmp(changed[i].name, name))
            return changed[i].function;
    return NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char *name)
{
    PFN_vkVoidFunction there = REAL(vkGetDeviceProcAddr)(device, name);
    PFN_vkVoidFunction here = ours(name);
    return there && here ? here : there;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance, const char *name)
{
    PFN_vkVoidFunction there = real_instance_proc(instance, name);
    PFN_vkVoidFunction here = ours(name);
    return there && here ? here : there;
}

static int open_real(void)
{
    if (real_instance_proc)
        return 1;
    void *library = dlopen(text("SIMULATED_DRIVER", "libvulkan_lvp.so"), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "simulated device: %s\n", dlerror());
        return 0;
    }
    real_negotiate = (VkResult (*)(uint32_t *))dlsym(
        library, "vk_icdNegotiateLoaderICDInterfaceVersion");
    real_instance_proc = (PFN_vkGetInstanceProcAddr)dlsym(library, "vk_icdGetInstanceProcAddr");
    return real_instance_proc != NULL;
}

VKAPI_ATTR VkResult VKAPI_CALL vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version)
{
    if (!open_real())
        return VK_ERROR_INCOMPATIBLE_DRIVER;
    *version = *version > 5 ? 5 : *version;
    return real_negotiate ? real_negotiate(version) : VK_SUCCESS;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vk_icdGetInstanceProcAddr(
    VkInstance instance, const char *name)
{
    return open_real() ? instance_proc(instance, name) : NULL;
}
