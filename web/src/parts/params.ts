/** The form of a trigger: fields from the params of a DAG, and the configuration that they make. */
import { t } from '../strings'

export interface ParamSpec {
  value?: unknown
  schema?: Record<string, unknown> | null
  description?: string | null
}
export type Kind = 'text' | 'area' | 'number' | 'boolean' | 'choice' | 'date' | 'datetime' | 'json'
export interface FieldOf {
  name: string
  kind: Kind
  title: string
  hint: string
  required: boolean
  nullable: boolean
  choices: unknown[]
  integer: boolean
  /** Bounds of a number. */
  least: number | null
  most: number | null
}

/** The types of a schema, without null. */
function types(schema: Record<string, unknown>): string[] {
  const type = schema['type']
  return (Array.isArray(type) ? type : type ? [type] : []).filter((one): one is string => one !== 'null')
}

export function fields(params: Record<string, ParamSpec>): FieldOf[] {
  return Object.entries(params).map(([name, spec]) => {
    const schema = spec.schema ?? {}
    const own = types(schema)
    const choices = Array.isArray(schema['enum']) ? (schema['enum'] as unknown[]) : []
    return {
      name,
      kind: kind(spec, schema, own, choices),
      title: typeof schema['title'] === 'string' ? schema['title'] : name,
      hint: spec.description ?? (typeof schema['description'] === 'string' ? schema['description'] : ''),
      required: !('value' in spec),
      nullable: Array.isArray(schema['type']) && schema['type'].includes('null'),
      choices,
      integer: own[0] === 'integer',
      least: typeof schema['minimum'] === 'number' ? schema['minimum'] : null,
      most: typeof schema['maximum'] === 'number' ? schema['maximum'] : null,
    }
  })
}

function kind(spec: ParamSpec, schema: Record<string, unknown>, own: string[], choices: unknown[]): Kind {
  if (choices.length) return 'choice'
  const type = own.length === 1 ? own[0] : own.length ? 'any' : guessed(spec.value)
  if (type === 'boolean') return 'boolean'
  if (type === 'integer' || type === 'number') return 'number'
  if (type === 'string') {
    if (schema['format'] === 'date') return 'date'
    if (schema['format'] === 'date-time') return 'datetime'
    return schema['format'] === 'multiline' ? 'area' : 'text'
  }
  return 'json'
}

function guessed(value: unknown): string {
  return typeof value === 'boolean' || typeof value === 'number' || typeof value === 'string' ? typeof value : 'any'
}

/** What a field shows for a value. */
export function shown(field: FieldOf, value: unknown): string {
  if (value === undefined || value === null) return ''
  if (field.kind === 'json') return JSON.stringify(value, null, 2)
  if (field.kind === 'choice') return JSON.stringify(value)
  if (field.kind === 'datetime' && typeof value === 'string') return value.slice(0, 16)
  return String(value)
}

/** The value of what was typed. Throws an Error with a message for the user. */
export function parsed(field: FieldOf, text: string): unknown {
  if (text === '') return field.nullable ? null : !field.required && (field.kind === 'text' || field.kind === 'area') ? '' : undefined
  switch (field.kind) {
    case 'number': {
      const value = Number(text)
      if (!Number.isFinite(value) || (field.integer && !Number.isInteger(value))) throw new Error(field.integer ? t.trigger.whole : t.trigger.number)
      if (field.least !== null && value < field.least) throw new Error(t.trigger.least(field.least))
      if (field.most !== null && value > field.most) throw new Error(t.trigger.most(field.most))
      return value
    }
    case 'boolean':
      return text === 'true'
    case 'choice':
      return JSON.parse(text) as unknown
    case 'datetime':
      return /Z|[+-]\d\d:\d\d$/.test(text) ? text : `${text}:00Z`
    case 'json':
      try {
        return JSON.parse(text) as unknown
      } catch {
        throw new Error(t.trigger.notJson)
      }
    default:
      return text
  }
}

/** The configuration that differs from the defaults. */
export function conf(all: FieldOf[], texts: Record<string, string>, params: Record<string, ParamSpec>): { conf: Record<string, unknown>; wrong: Record<string, string> } {
  const found: Record<string, unknown> = {}
  const wrong: Record<string, string> = {}
  for (const field of all) {
    try {
      const value = parsed(field, texts[field.name] ?? '')
      if (value === undefined) {
        if (field.required) wrong[field.name] = t.trigger.required
      } else if (field.required || JSON.stringify(value) !== JSON.stringify(params[field.name]?.value ?? null)) found[field.name] = value
    } catch (error) {
      wrong[field.name] = (error as Error).message
    }
  }
  return { conf: found, wrong }
}

/** The param that an error of the server names, if the form has it. */
export function named(all: readonly FieldOf[], error: string): string | null {
  const name = /[Pp]aram '([^']+)'/.exec(error)?.[1]
  return all.find((field) => field.name === name)?.name ?? null
}
