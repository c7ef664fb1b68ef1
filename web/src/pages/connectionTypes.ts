/** What the form of a connection asks for, by type. Pure. */
export interface Preset {
  name: string
  port?: number
  /** The labels of fields that mean something else here; null leaves one out. */
  host?: string | null
  login?: string | null
  password?: string | null
  schema?: string | null
  /** Fields of the extra: the key, and an example. */
  extra?: Record<string, string>
}

export const PRESETS: Record<string, Preset> = {
  postgres: { name: 'PostgreSQL', port: 5432, schema: 'Database', extra: { sslmode: 'verify-full' } },
  mysql: { name: 'MySQL', port: 3306, schema: 'Database', extra: { charset: 'utf8mb4' } },
  mssql: { name: 'SQL Server', port: 1433, schema: 'Database' },
  oracle: { name: 'Oracle', port: 1521, schema: 'Schema', extra: { service_name: 'ORCL' } },
  snowflake: { name: 'Snowflake', host: null, schema: 'Schema', extra: { account: 'ab12345.eu-central-1', warehouse: 'LOADING', database: 'SHOP', role: 'LOADER' } },
  trino: { name: 'Trino', port: 8080, schema: 'Schema', extra: { catalog: 'hive', protocol: 'https' } },
  mongo: { name: 'MongoDB', port: 27017, schema: 'Database', extra: { srv: 'false' } },
  redis: { name: 'Redis', port: 6379, schema: null, extra: { db: '0' } },
  http: { name: 'HTTP', port: 443, schema: 'Scheme', extra: { timeout: '30' } },
  aws: { name: 'Amazon Web Services', host: null, login: 'Access key ID', password: 'Secret access key', schema: null, extra: { region_name: 'eu-central-1', endpoint_url: 'https://s3.shop.internal', role_arn: 'arn:aws:iam::1234:role/load' } },
  google_cloud_platform: { name: 'Google Cloud', host: null, login: null, password: null, schema: null, extra: { project: 'shop', keyfile_dict: '{"type": "service_account"}' } },
  wasb: { name: 'Azure Blob Storage', login: 'Account name', password: 'Account key', schema: null },
  ssh: { name: 'SSH', port: 22, schema: null, extra: { key_file: '/etc/paceline/id_ed25519' } },
  sftp: { name: 'SFTP', port: 22, schema: null, extra: { key_file: '/etc/paceline/id_ed25519' } },
  smtp: { name: 'Email (SMTP)', port: 587, schema: null, extra: { from_email: 'etl@shop.internal', disable_ssl: 'true' } },
  kafka: { name: 'Kafka', host: null, login: null, password: null, schema: null, extra: { 'bootstrap.servers': 'kafka:9092', 'group.id': 'etl', 'security.protocol': 'SASL_SSL' } },
  spark: { name: 'Spark', host: 'Master', port: 7077, login: null, password: null, schema: null, extra: { queue: 'etl', 'deploy-mode': 'cluster' } },
  spark_connect: { name: 'Spark Connect', host: 'Server', port: 15002, login: 'User', password: 'Token', schema: null, extra: { use_ssl: 'true' } },
}

/** A field of the extra in the form: what is stored is kept unless a new value is given. */
export interface ExtraField {
  key: string
  /** What is stored, with secrets as ***; undefined: nothing. */
  stored?: unknown
  /** The new value; null keeps what is stored. */
  text: string | null
  removed: boolean
}

/** The fields of an extra, those of the type first; null if it is no JSON object. */
export function extraFields(preset: Preset | undefined, extra: string | null | undefined): ExtraField[] | null {
  let stored: Record<string, unknown> = {}
  if (extra) {
    try {
      const found: unknown = JSON.parse(extra)
      if (!found || typeof found !== 'object' || Array.isArray(found)) return null
      stored = found as Record<string, unknown>
    } catch {
      return null
    }
  }
  const keys = [...new Set([...Object.keys(preset?.extra ?? {}), ...Object.keys(stored)])]
  return keys.map((key) => (key in stored ? { key, stored: stored[key], text: null, removed: false } : { key, text: '', removed: false }))
}

/** The extra to store: kept values as they were shown, which the server replaces by the stored ones. Null if it has no field. */
export function extraOf(fields: readonly ExtraField[]): string | null {
  const chosen = fields.filter((one) => one.key && !one.removed && (one.text === null || one.text !== ''))
  return chosen.length ? JSON.stringify(Object.fromEntries(chosen.map((one) => [one.key, one.text === null ? one.stored : typed(one.text)]))) : null
}

/** Numbers, true, false, lists and objects as such; anything else is a text. */
function typed(text: string): unknown {
  try {
    const found: unknown = JSON.parse(text)
    // A number that would read back differently, such as a long account number, is a text.
    return typeof found === 'number' && String(found) !== text.trim() ? text : found
  } catch {
    return text
  }
}

/** A connection as one line, such as `shop=postgres://ada:secret@db.shop/orders?sslmode=require`; also as a variable of the environment. */
export function fromLine(text: string): { id: string; type: string; texts: Record<string, string>; password: string; extra: Record<string, string> } | null {
  const [, given, uri] = /^\s*([\w.-]+)\s*=\s*["']?([a-z][\w.+-]*:\/\/[^\s"']*)["']?\s*$/i.exec(text) ?? []
  if (!given || !uri) return null
  try {
    const url = new URL(uri.replace(/^[^:]+/, 'any'))
    const scheme = uri.slice(0, uri.indexOf(':')).toLowerCase().replaceAll('-', '_')
    const texts = { host: decodeURIComponent(url.hostname), port: url.port, schema: decodeURIComponent(url.pathname.slice(1)), login: decodeURIComponent(url.username) }
    return { id: given.replace(/^(PACELINE|AIRFLOW)_CONN_(.*)/, (_, _of: string, name: string) => name.toLowerCase()), type: ALIASES[scheme] ?? scheme, texts, password: decodeURIComponent(url.password), extra: Object.fromEntries(url.searchParams) }
  } catch {
    return null
  }
}

/** Schemes of URIs that stand for a type with another name. */
const ALIASES: Record<string, string> = { postgresql: 'postgres', https: 'http', google_cloud: 'google_cloud_platform' }
