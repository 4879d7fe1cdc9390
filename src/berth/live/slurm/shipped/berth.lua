-- berth's part of Slurm: the GPU request of batch jobs in the partitions below goes into a note in AdminComment, and the
-- job is held until berth places it. The note stands behind what others write there, and stays if they write anew.
-- job_submit.lua loads this file at its end; functions that it has of its own go first.

local BERTH_PARTITIONS = {} -- @PARTITIONS@  names of partitions, each = true
local BERTH_QOS = {}        -- @QOS@         names of QoS, each = true: their jobs too, in whatever partition
local BERTH_TYPES = {}      -- @TYPES@       types that GPUs had until each got one of its own, each = true
local BERTH_OPERATORS = { [0] = true } -- @OPERATORS@  uids that may release: root, SlurmUser and those of --operator

local NO_VAL, NO_VAL16 = 4294967294, 65534
local MARK = "berth:1;"
local LET_GO = "berth:0;" -- what berth writes to take its note away

-- berth's note in a comment, and what others wrote there.
local function parted(comment)
   local text = " " .. (comment or "")
   return string.match(text, " (" .. MARK .. "%S*)"), string.sub((string.gsub(text, " " .. MARK .. "%S*", "")), 2)
end

local function given(text)
   return text ~= nil and text ~= ""
end

local function with_note(others, note)
   return given(others) and (others .. " " .. note) or note
end

local function set(number)
   return number ~= nil and number ~= NO_VAL and number ~= NO_VAL16
end

-- The partition that the job goes to; nil where there are several.
local function partition_of(job_desc, part_list)
   local name = job_desc.partition
   if not given(name) then
      for _, part in pairs(part_list) do
         if part.flag_default == 1 then
            return part.name
         end
      end
      return nil
   end
   if string.find(name, ",") then
      return nil
   end
   return name
end

-- Why berth leaves a job as it came; nil for a job that it takes.
local function left(job_desc, part_list)
   local name = partition_of(job_desc, part_list)
   local qos = given(job_desc.qos) and job_desc.qos or job_desc.default_qos
   if not (name and BERTH_PARTITIONS[name]) and not (given(qos) and BERTH_QOS[qos]) then
      return "not of its partitions"
   end
   local component = set(job_desc.het_job_offset)
   if not component
      and not (given(job_desc.tres_per_node) or given(job_desc.tres_per_job) or given(job_desc.tres_per_task)) then
      return "no GPUs"
   end
   local asked = (job_desc.tres_per_node or "") .. (job_desc.tres_per_job or "") .. (job_desc.tres_per_task or "")
   if string.find(asked, "[;%s]") then
      return "an odd request"
   end
   local stripped = string.gsub(asked, "gres[:/]", "")
   if not (string.find(stripped, "gpu") or string.find(stripped, "shard")) and not (component and asked == "") then
      return "no GPUs"
   end
   if not given(job_desc.script) and not (component and given(job_desc.std_in)) then
      return "not a batch job" -- of a heterogeneous one the first component has the script, and all have an input
   end
   if given(job_desc.tres_per_socket) or given(job_desc.cpus_per_tres) or given(job_desc.mem_per_tres)
      or given(job_desc.tres_freq) or given(job_desc.tres_bind) or set(job_desc.ntasks_per_tres) then
      return "CPUs, memory or tasks for each GPU"
   end
   if job_desc.shared == 0 then
      return "whole nodes"
   end
   if given(job_desc.reservation) or given(job_desc.req_nodes) or given(job_desc.exc_nodes) then
      return "a reservation or nodes by name"
   end
   if given(job_desc.features) and string.find(job_desc.features, "[^%w_.:/&-]") then
      return "features that are no plain list"
   end
   if set(job_desc.min_nodes) and set(job_desc.max_nodes) and job_desc.min_nodes ~= job_desc.max_nodes then
      return "a range of nodes"
   end
   if job_desc.priority == 0 then
      return "held by its user"
   end
   return nil
end

-- A request for a type that GPUs no longer have asks for the feature of that name, which their nodes have. A command of
-- srun would ask for the type again in its step, so that it is refused and told what to ask for.
local function by_feature(job_desc, has, interactive)
   if given(has) and string.find(has, "[^%w_.:/&-]") then
      return slurm.SUCCESS
   end
   local model = nil
   local function any(kind)
      if BERTH_TYPES[kind] then
         model = kind
         return "gpu"
      end
      return nil
   end
   for _, name in ipairs({ "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }) do
      if given(job_desc[name]) then
         local plain = string.gsub(job_desc[name], "gpu:(%a[%w_.-]*)", any)
         if plain ~= job_desc[name] then
            job_desc[name] = plain
         end
      end
   end
   if model and interactive then
      slurm.log_user("GPUs of type " .. model .. " have a type each here: ask for --gres=gpu:N -C " .. model)
      return slurm.ERROR
   elseif model then
      job_desc.features = given(has) and (has .. "&" .. model) or model
   end
   return slurm.SUCCESS
end

function berth_submit(job_desc, part_list, submit_uid)
   local forged, others = parted(job_desc.admin_comment)
   if forged then
      job_desc.admin_comment = others
   end
   local why = left(job_desc, part_list)
   if why then
      return by_feature(job_desc, job_desc.features, not given(job_desc.script))
   end
   job_desc.admin_comment = with_note(others, MARK .. "node=" .. (job_desc.tres_per_node or "") .. ";job="
      .. (job_desc.tres_per_job or "") .. ";task=" .. (job_desc.tres_per_task or "")
      .. (set(job_desc.het_job_offset) and (";part=" .. job_desc.het_job_offset) or ""))
   job_desc.tres_per_node = ""
   job_desc.tres_per_job = ""
   job_desc.tres_per_task = ""
   job_desc.priority = 0
   return slurm.SUCCESS
end

-- The GPUs of a job that berth has taken are berth's to give: released by its user, it would run with none at all.
function berth_modify(job_desc, job_rec, part_list, modify_uid)
   local note, others = parted(job_rec.admin_comment)
   if BERTH_OPERATORS[modify_uid] then
      by_feature(job_desc, job_desc.features or job_rec.features, false)
      local new_note, new_others = parted(job_desc.admin_comment)
      local part = new_note and string.match(new_note, ";part=(%d+)")
      if part and tonumber(part) ~= job_rec.het_job_offset then -- Slurm changes all components with the first
         job_desc.admin_comment = given(job_rec.admin_comment) and job_rec.admin_comment or " "
      elseif job_desc.admin_comment == LET_GO then
         job_desc.admin_comment = given(others) and others or " " -- an empty text changes nothing
      elseif new_note then
         job_desc.admin_comment = with_note(given(new_others) and new_others or others, new_note)
      elseif note and job_desc.admin_comment ~= nil then
         job_desc.admin_comment = with_note(job_desc.admin_comment, note)
      end
      return slurm.SUCCESS
   end
   if not note then
      return slurm.SUCCESS
   end
   local what = nil
   if set(job_desc.priority) and job_desc.priority ~= 0 and job_rec.priority == 0 then
      what = "its release"
   elseif job_desc.tres_per_node ~= nil or job_desc.tres_per_job ~= nil or job_desc.tres_per_task ~= nil
      or job_desc.tres_per_socket ~= nil then
      what = "its GPUs"
   elseif job_desc.req_nodes ~= nil or job_desc.exc_nodes ~= nil then
      what = "its nodes"
   elseif given(job_desc.partition) and job_desc.partition ~= job_rec.partition then
      what = "its partition"
   elseif job_desc.admin_comment ~= nil then
      what = "its AdminComment"
   elseif job_desc.dependency ~= nil and string.find(note, ";share=", 1, true) then
      what = "what it waits for" -- the job whose GPU it is to have
   end
   if what then
      slurm.log_user("berth places this job, and " .. what .. " cannot be changed; cancel it and submit it anew")
      return slurm.ESLURM_ACCESS_DENIED -- all that scontrol of 22.05 shows; later ones show the line above too
   end
   return slurm.SUCCESS
end

local site_submit, site_modify = slurm_job_submit, slurm_job_modify

function slurm_job_submit(job_desc, part_list, submit_uid)
   local status = site_submit and site_submit(job_desc, part_list, submit_uid) or slurm.SUCCESS
   if status ~= slurm.SUCCESS then
      return status
   end
   return berth_submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   local status = site_modify and site_modify(job_desc, job_rec, part_list, modify_uid) or slurm.SUCCESS
   if status ~= slurm.SUCCESS then
      return status
   end
   return berth_modify(job_desc, job_rec, part_list, modify_uid)
end
